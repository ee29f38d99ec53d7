"""qkv.position.Rope: rotations, and their scalings as configurations of Hugging Face name them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self, TypeAlias, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt

from qkv import _core, _errors
from qkv._types import Float, SupportsDLPack, Tensor

__all__ = ["Rope"]

Layout: TypeAlias = Literal["half", "interleaved"]

_ORIGINAL = "original_max_position_embeddings"


class _Call(TypedDict, total=False):
    first: int
    inverse: bool
    backward: bool
    seq_len: int | None
    out: SupportsDLPack | None


#: What each scaling must have, and what else it may have.
_SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "yarn": (
        ("factor", _ORIGINAL),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL), ()),
}
#: What all of them may have.
_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_DEFAULT_BASE = 10000.0


def _type_of(given: Mapping[str, Any]) -> str:
    """The name of the scaling: "rope_type", or "type" as it was called before."""
    for key in ("rope_type", "type"):
        if not isinstance(given.get(key, ""), str):
            raise TypeError(f"scaling: {key}: expected a str, got {type(given[key]).__name__}")
    legacy = given.get("type")
    name: str = given.get("rope_type", "default" if legacy is None else legacy)
    if legacy not in (None, name):
        raise _errors.ValueError(f"scaling: rope_type is {name!r}, but type is {legacy!r}")
    if name not in _SCALINGS:
        raise _errors.ValueError(
            f"scaling: rope_type {name!r} is not supported, expected one of {', '.join(_SCALINGS)}"
        )
    return name


def _scaling(scaling: Mapping[str, Any] | None, max_position: int | None) -> tuple[str, dict[str, Any]]:
    """The name and the parameters of a scaling, all of them known and none missing."""
    if scaling is None:
        return "default", {}
    if not isinstance(scaling, Mapping):
        raise TypeError(f"scaling: expected a dict as a config's rope_parameters, got {type(scaling).__name__}")
    given = {key: value for key, value in scaling.items() if value is not None}
    name = _type_of(given)
    required, optional = _SCALINGS[name]
    known = (*required, *optional, *_COMMON)
    unknown = [key for key in given if key not in known]
    if unknown:
        takes = ", ".join(known)
        raise _errors.ValueError(f"scaling: {name!r} takes no {unknown[0]!r}, expected some of {takes}")
    if max_position is not None:
        _complete(name, given, max_position)
    missing = [key for key in required if key not in given]
    if missing:
        raise _errors.ValueError(f"scaling: {name!r} needs {missing[0]!r}, which is missing")
    return name, given


def _complete(name: str, given: dict[str, Any], max_position: int) -> None:
    """What the scaling lacks and the model's length implies: the original length, or the factor beside one."""
    if _ORIGINAL not in _SCALINGS[name][0]:
        return
    if _ORIGINAL not in given:
        given[_ORIGINAL] = max_position
    elif name == "yarn" and "factor" not in given:
        original = _core.integer(given[_ORIGINAL], f"scaling.{_ORIGINAL}")
        if original < 1:
            raise _errors.ValueError(f"scaling.{_ORIGINAL}: expected at least 1, got {original}")
        given["factor"] = _core.integer(max_position, "max_position") / original


def _number(given: Mapping[str, Any], key: str) -> float | None:
    """A parameter that is reckoned with before the library checks it."""
    if key not in given:
        return None
    number = _core.number(given[key], f"scaling.{key}")
    if not math.isfinite(number):
        raise _errors.ValueError(f"scaling.{key}: expected a finite number, got {number}")
    return number


def _base(base: float | None, parameters: Mapping[str, Any]) -> float:
    theta = _number(parameters, "rope_theta")
    if theta is None:
        return _DEFAULT_BASE if base is None else base
    if base is None:
        if theta <= 1:
            raise _errors.ValueError(f"scaling.rope_theta: expected a finite number above 1, got {theta}")
        return theta
    if _core.number(base, "base") != theta:
        raise _errors.ValueError(f"base: {base} is given, but scaling has rope_theta {theta}")
    return base


def _rotary_dim(rotary_dim: int | None, head_dim: int, parameters: Mapping[str, Any]) -> int | None:
    share = _number(parameters, "partial_rotary_factor")
    if share is None:
        return rotary_dim
    if not 0 < share <= 1:
        raise _errors.ValueError(f"scaling.partial_rotary_factor: expected a number above 0, at most 1, got {share}")
    turned = int(_core.integer(head_dim, "head_dim") * share)
    if rotary_dim is not None and _core.integer(rotary_dim, "rotary_dim") != turned:
        raise _errors.ValueError(
            f"rotary_dim: {rotary_dim} is given, but scaling has partial_rotary_factor {share}: {turned}"
        )
    return turned


def _made(rope: type[Rope], head_dim: int, options: dict[str, Any]) -> Rope:
    """Of copies and pickles, which do not hand over arguments by name."""
    return rope(head_dim, **options)


class Rope(_core.Rope):
    """Rotary position embedding: pair i of a row at position p turns by the angle ``p * frequencies[i]``.

    ``frequencies[i] = base ** (-2 * i / rotary_dim)``, and then as the scaling says. The logit of two rows so turned
    depends on the distance of their positions alone. Make one for a model: it holds tables of 4 KiB a pair.

    Parameters
    ----------
    head_dim : int
        Columns of a row.
    base : float, optional
        rope_theta, above 1; default that of ``scaling``, or 10000.
    rotary_dim : int, optional
        Columns that turn, the first ones: an even number up to 65536. The rest is copied. Default
        ``partial_rotary_factor`` of ``scaling`` times head_dim, or head_dim.
    layout : {"half", "interleaved"}, default "half"
        Which columns make a pair: i and ``i + rotary_dim / 2`` (Llama, GPT-NeoX), or 2i and 2i + 1 (GPT-J).
    scaling : dict, optional
        ``rope_parameters`` or ``rope_scaling`` of a Hugging Face configuration as it is: its rope_type (or type) is
        default, linear, dynamic, yarn or llama3. Values of None count as not given.
    max_position : int, optional
        ``max_position_embeddings`` of the model. "dynamic" needs it; "yarn" and "llama3" take it for an
        ``original_max_position_embeddings`` that they lack.

    Attributes
    ----------
    head_dim, base, rotary_dim, layout, max_position
        What it was made with, defaults filled in.
    scaling : str
        The scaling's rope_type; "default" for none.
    scaling_parameters : dict
        Its other parameters, defaults filled in.
    attention_factor : float
        What cosines and sines are multiplied by: 1 but for "yarn".

    Raises
    ------
    ValueError
        An unknown scaling, parameters that it does not take or lacks, numbers out of their range: named.
    TypeError
        Anything but numbers, or a scaling that is no dict.

    Examples
    --------
    >>> import numpy as np
    >>> import qkv
    >>> rope = qkv.position.Rope(64, scaling={"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0})
    >>> q = np.ones((1, 8, 10, 64), np.float32)
    >>> turned = rope.apply(q, first=100)
    >>> bool(np.allclose(rope.apply(turned, first=100, inverse=True), q))
    True
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float | None = None,
        rotary_dim: int | None = None,
        layout: Layout = "half",
        scaling: Mapping[str, Any] | None = None,
        max_position: int | None = None,
    ) -> None:
        name, parameters = _scaling(scaling, max_position)
        sizes = (head_dim, _rotary_dim(rotary_dim, head_dim, parameters), max_position)
        super().__init__(sizes, _base(base, parameters), layout, name, parameters)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are made anew, with tables of their own."""
        options = {
            "base": self.base,
            "rotary_dim": self.rotary_dim,
            "layout": self.layout,
            "scaling": {"rope_type": self.scaling, **self.scaling_parameters},
            "max_position": self.max_position,
        }
        return _made, (type(self), self.head_dim, options)

    @classmethod
    def _sharing(cls, rope: _core.Rope) -> Self:
        """The same, by the same tables."""
        shared = cls.__new__(cls)
        _core.Rope.__init__(shared, rope)
        return shared

    @overload  # type: ignore[override]
    def apply(
        self, x: npt.NDArray[Float], positions: Iterable[int] | SupportsDLPack | None = ..., **options: Unpack[_Call]
    ) -> npt.NDArray[Float]: ...
    @overload
    def apply(
        self, x: Tensor, positions: Iterable[int] | SupportsDLPack | None = ..., **options: Unpack[_Call]
    ) -> Tensor: ...
    @overload
    def apply(
        self, x: SupportsDLPack, positions: Iterable[int] | SupportsDLPack | None = ..., **options: Unpack[_Call]
    ) -> Any: ...
    def apply(
        self,
        x: SupportsDLPack,
        positions: Iterable[int] | SupportsDLPack | None = None,
        *,
        first: int = 0,
        inverse: bool = False,
        backward: bool = False,
        seq_len: int | None = None,
        out: SupportsDLPack | None = None,
    ) -> Any:
        """Turns every row by its position.

        Parameters
        ----------
        x : array, shape [batch, heads, n, head_dim]
            float32, float64, float16 or bfloat16; fewer axes are legal: the missing leading ones are 1. Any strides.
        positions : int array of shape [n] or [batch, n], or n ints, optional
            Of the rows, from ``-2**53`` to ``2**53``. Default ``first``, ``first + 1``, ...
        first : int, default 0
            Position of row 0, without ``positions``.
        inverse : bool, default False
            Turns back: undoes what was applied.
        backward : bool, default False
            The gradient of x from that of the result. It is the inverse, but for the attention factor of YaRN, by which
            this one multiplies.
        seq_len : int, optional
            Length of the sequence, at least the largest position + 1, which is the default. "dynamic" goes by it, and
            calls of one sequence give the bits of one call if they name the same; to others it makes no difference.
        out : array, shape of x, optional
            Where to write; x itself turns in place. It shares no other memory with x.

        Returns
        -------
        array of x's kind, shape and dtype
            out, if given. Angles are float64, whatever the dtype; numbers are rounded once.

        Raises
        ------
        ShapeError, DtypeError, ValueError, TypeError
            Arguments that do not fit, named.
        """
        return super().apply(x, (positions, first), (inverse, backward), seq_len, out)

    def frequencies(self, seq_len: int | None = None) -> npt.NDArray[np.float64]:  # type: ignore[override]
        """Radians a position, of each pair: Hugging Face's inv_freq, in float64.

        Parameters
        ----------
        seq_len : int, optional
            Length of the sequence, for "dynamic" alone; up to max_position, the default, nothing is scaled.
        """
        return np.array(super().frequencies(seq_len), np.float64)

    def __repr__(self) -> str:
        return (
            f"Rope(head_dim={self.head_dim}, base={self.base}, rotary_dim={self.rotary_dim}, layout={self.layout!r}, "
            f"scaling={self.scaling!r})"
        )
