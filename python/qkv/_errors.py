"""The exceptions of the package: each is also the built-in class that Python users expect."""

from __future__ import annotations

import builtins

__all__ = ["DtypeError", "Error", "ShapeError", "ValueError"]


class Error(Exception):
    """Base of every error that qkv raises about the numbers and arrays it was given.

    The text begins with the argument's name and says what was seen and what was expected. An argument that is no array
    or number at all raises the built-in TypeError.
    """


class ShapeError(Error, builtins.ValueError):
    """Ranks, extents or strides that do not fit together."""


class DtypeError(Error, builtins.TypeError):
    """An element type that the operation does not take, or two that must agree and do not."""


class ValueError(Error, builtins.ValueError):  # noqa: A001 - the C++ name; never exported by a star import
    """A number out of its range, or an array that cannot be used as it is (read-only, requires grad, on a GPU)."""


for _class in (Error, ShapeError, DtypeError, ValueError):
    _class.__module__ = "qkv"
