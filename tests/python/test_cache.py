"""qkv.KVCache and qkv.PagedKVCache from Python."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import assert_same_bits, optional

import qkv

ml_dtypes: Any = optional("ml_dtypes")
torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")

LENGTH = 50
STORAGE = ["float32", "float16", "bfloat16", "int8"]


def tokens(batch: int = 2, n: int = LENGTH, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    k, v = (rng.standard_normal((batch, 2, n, d)).astype(np.float32) for d in (24, 16))
    return k, v


def queries(batch: int = 2, n: int = LENGTH, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 4, n, 24)).astype(np.float32)


def slots(**options: Any) -> qkv.KVCache:
    return qkv.KVCache(**{"batch": 2, "num_kv_heads": 2, "head_dim": 24, "capacity": 60, "value_dim": 16, **options})


def pages(**options: Any) -> qkv.PagedKVCache:
    sizes = {"batch": 2, "num_kv_heads": 2, "head_dim": 24, "num_pages": 12, "page_size": 16, "value_dim": 16}
    return qkv.PagedKVCache(**{**sizes, **options})


BOTH = pytest.mark.parametrize("make", [slots, pages])


@BOTH
def test_a_cache_gives_the_bits_of_arrays(make: Any) -> None:
    k, v = tokens()
    q = queries()
    cache = make()
    cache.append(k, v)
    got = qkv.attention(
        q, cache, causal=True, return_lse=True, return_logits="masked", return_weights=True, return_stats=True
    )
    expected = qkv.attention(
        q, k, v, causal=True, return_lse=True, return_logits="masked", return_weights=True, return_stats=True
    )
    for actual, wanted in zip([*got[:4], *got[4]], [*expected[:4], *expected[4]], strict=True):
        assert_same_bits(actual, wanted)


@BOTH
@pytest.mark.parametrize("dtype", STORAGE)
def test_token_by_token_is_one_pass(make: Any, dtype: str) -> None:
    k, v = tokens()
    q = queries()
    whole, growing = make(dtype=dtype), make(dtype=dtype)
    whole.append(k, v)
    expected = qkv.attention(q, whole, causal=True)
    for i in range(LENGTH):
        growing.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        assert_same_bits(qkv.attention(q[:, :, i : i + 1], growing), np.ascontiguousarray(expected[:, :, i : i + 1]))
    assert growing.lengths == (LENGTH, LENGTH)


@pytest.mark.parametrize("dtype", STORAGE)
def test_the_reference_reads_the_same_cache(dtype: str) -> None:
    k, v = tokens()
    cache = slots(dtype=dtype)
    cache.append(k, v)
    q = queries()
    np.testing.assert_allclose(qkv.attention(q, cache), qkv.reference.attention(q, cache), rtol=0, atol=2e-5)


def test_eight_bits_are_near_what_they_stand_for() -> None:
    k, v = tokens()
    q = queries()
    cache = slots(dtype="int8")
    cache.append(k, v)
    assert np.abs(qkv.attention(q, cache) - qkv.attention(q, k, v)).max() < 0.05


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        ("float16", ("float16", "float16")),
        (np.float16, ("float16", "float16")),
        (np.dtype("float32"), ("float32", "float32")),
        (np.int8, ("int8", "int8")),
        (("int8", np.float32), ("int8", "float32")),
        (("bfloat16", "int8"), ("bfloat16", "int8")),
    ],
)
def test_dtypes_of_keys_and_values(dtype: Any, names: tuple[str, str]) -> None:
    assert slots(dtype=dtype).dtype == names
    assert pages(dtype=dtype).dtype == names


@needs_torch
def test_pytorch_dtypes_and_tensors() -> None:
    k, v = (torch.from_numpy(x).to(torch.bfloat16) for x in tokens())
    q = torch.from_numpy(queries()).to(torch.bfloat16)
    cache = slots(dtype=torch.bfloat16)
    assert cache.dtype == ("bfloat16", "bfloat16")
    cache.append(k, v)
    out = qkv.attention(q, cache, causal=True)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, qkv.attention(q, k, v, causal=True))


def test_bytes_are_those_of_the_formula() -> None:
    assert slots().nbytes == 2 * 2 * 60 * (24 + 16) * 4
    assert slots(dtype=("int8", "float16")).nbytes == 2 * 2 * 60 * (24 + 4 + 16 * 2)
    assert pages().nbytes == 12 * 2 * 16 * (24 + 16) * 4


def test_lengths_say_what_is_real() -> None:
    k, v = tokens()
    cache = slots()
    cache.append(k, v, lengths=[50, 7])
    cache.append(k, v, lengths=np.array([0, 2], np.int32))
    assert cache.lengths == (50, 9)
    cache.append(k, v, lengths=1)
    assert cache.lengths == (51, 10)
    cache.truncate([20, 10])
    cache.truncate(10)
    assert cache.lengths == (10, 10)


def test_a_batch_grows_in_mid_run() -> None:
    k, v = tokens()
    cache = slots(batch=1, dtype="int8")
    cache.append(k[:1], v[:1])
    cache.grow(2)
    cache.append(k[:, :, :5], v[:, :, :5])
    assert cache.lengths == (55, 5)
    q = queries(n=1)
    alone = slots(batch=1, dtype="int8")
    alone.append(k[1:, :, :5], v[1:, :, :5])
    assert_same_bits(qkv.attention(q, cache)[1:], qkv.attention(q[1:], alone))


def test_a_prefix_is_shared() -> None:
    k, v = tokens(batch=1, n=40)
    more_k, more_v = tokens(batch=2, n=3, seed=5)
    cache = pages(batch=1)
    cache.append(k, v)
    cache.grow(2)
    cache.share(0, 1)
    assert cache.num_free_pages == 9
    cache.append(more_k, more_v)
    assert cache.num_free_pages == 8
    q = queries(n=1)
    for b in range(2):
        alone = pages(batch=1)
        alone.append(k, v)
        alone.append(more_k[b : b + 1], more_v[b : b + 1])
        assert_same_bits(qkv.attention(q, cache)[b : b + 1], qkv.attention(q[b : b + 1], alone))


def test_a_ring_is_a_window_beside_the_sinks() -> None:
    k, v = tokens(batch=1, n=200)
    q = queries(batch=1, n=200)
    cache = slots(batch=1, capacity=34, window=30, num_sinks=4)
    distance = np.arange(200)[:, None] - np.arange(200)[None, :]
    mask = (distance >= 0) & ((distance < 30) | (np.arange(200) < 4))
    expected = qkv.attention(q, k, v, mask=mask)
    for i in range(200):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        assert_same_bits(qkv.attention(q[:, :, i : i + 1], cache), np.ascontiguousarray(expected[:, :, i : i + 1]))
    with pytest.raises(qkv.ValueError, match=r"sees keys from 169 on, but the ring holds those from 170 on"):
        qkv.attention(q[:, :, -2:], cache)


@BOTH
def test_files_come_back(make: Any, tmp_path: Path) -> None:
    k, v = tokens()
    cache = make(dtype=("int8", "bfloat16"))
    cache.append(k, v, lengths=[50, 20])
    cache.save(tmp_path / "cache.safetensors")
    loaded = type(cache).load(str(tmp_path / "cache.safetensors"))
    assert type(loaded) is type(cache)
    assert repr(loaded) == repr(cache)
    q = queries(n=1)
    assert_same_bits(qkv.attention(q, loaded), qkv.attention(q, cache))


def test_files_are_safetensors(tmp_path: Path) -> None:
    safetensors = optional("safetensors.numpy")
    if safetensors is None:
        pytest.skip("safetensors is not installed")
    k, v = tokens()
    cache = slots()
    cache.append(k, v)
    cache.save(tmp_path / "cache.safetensors")
    arrays = safetensors.load_file(tmp_path / "cache.safetensors")
    np.testing.assert_array_equal(arrays["k"], k)
    np.testing.assert_array_equal(arrays["v"], v)
    np.testing.assert_array_equal(arrays["lengths"], [LENGTH, LENGTH])


def test_errors_of_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        qkv.KVCache.load(tmp_path / "nothing")
    assert caught.value.filename == str(tmp_path / "nothing")
    with pytest.raises(OSError, match=r"directory"):
        slots().save(tmp_path)
    (tmp_path / "text").write_text("not a cache at all, and long enough")
    with pytest.raises(qkv.ValueError, match=r"text: a header of"):
        qkv.KVCache.load(tmp_path / "text")
    pages().save(tmp_path / "pages")
    with pytest.raises(qkv.ValueError, match=r"expected the format 'qkv.KVCache 1', got 'qkv.PagedKVCache 1'"):
        qkv.KVCache.load(tmp_path / "pages")


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: slots(num_kv_heads=0), ValueError, "num_kv_heads: expected 1 or more, got 0"),
        (lambda: slots(capacity=2.5), TypeError, "capacity: expected an int, got float 2.5"),
        (lambda: slots(dtype="int4"), TypeError, "dtype: expected float32, .* bfloat16 or int8, got 'int4'"),
        (lambda: slots(dtype=np.int32), TypeError, "dtype: expected float32, .*got int32"),
        (lambda: slots(dtype=("int8",)), ValueError, "dtype: expected one, or one for keys and one for values, got 1"),
        (lambda: slots(window=0), ValueError, "window: expected 1 or more, got 0"),
        (lambda: slots(window=58, num_sinks=3), ValueError, "at least 3 sinks and a window of 58, got 60"),
        (lambda: pages(page_size=0), ValueError, "page_size: expected 1 to 2147483647, got 0"),
        (lambda: slots().append(*tokens(n=61)), ValueError, "sequence 0 holds 0 of 60 keys and has room"),
        (lambda: pages().append(*tokens(n=97)), ValueError, "12 pages of 16 keys are free of 12, 14 are needed"),
        (lambda: slots().append(*[tokens()[0]] * 2), ValueError, r"v: .* = \[2, 2, 50, 16\], got \[2, 2, 50, 24\]"),
        (lambda: slots().append(tokens()[0], None), TypeError, "v: expected a NumPy array"),
        (lambda: slots().append(*tokens(), lengths=[1]), ValueError, r"lengths: expected \[batch\] = \[2\], got \[1\]"),
        (lambda: slots().append(*tokens(), lengths=[1, 51]), ValueError, "lengths: expected 0 to 50 tokens"),
        (lambda: slots().truncate([0, 1]), ValueError, "lengths: expected 0 to 0, the keys of sequence 1, got 1"),
        (lambda: slots().grow(1), ValueError, "batch: expected 2 to 2147483647, got 1"),
        (lambda: pages().share(0, 5), ValueError, r"target: expected one of the 2 sequences, from 0 on, got 5"),
        (lambda: qkv.attention(queries(batch=1), slots()), ValueError, "cache: k: expected batch 1"),
        (lambda: qkv.attention(queries()[..., :5], slots()), ValueError, "cache: k: expected head_dim 5"),
        (lambda: qkv.attention(queries(), slots(), kv_lens=3), ValueError, "kv_lens: a cache takes none"),
        (lambda: qkv.attention(queries().astype(np.float64), slots()), TypeError, "cache: k: expected float64 as in q"),
        (lambda: qkv.attention(queries(), slots(), slots()), TypeError, "k: expected a NumPy array"),
        (lambda: qkv.attention(queries(), tokens()[0]), TypeError, "v: expected a NumPy array"),
        (lambda: qkv.attention(slots(), slots()), TypeError, "q: expected"),
        (lambda: qkv.attention_varlen(queries(), slots(), slots(), [0], [0]), TypeError, "k: expected a NumPy array"),
    ],
)  # fmt: skip
def test_errors(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize("make", [slots, pages])
def test_an_error_leaves_the_cache_as_it_was(make: Any) -> None:
    k, v = tokens()
    cache = make()
    cache.append(k, v)
    q = queries(n=1)
    before = qkv.attention(q, cache)
    with pytest.raises(qkv.ValueError, match="nothing was appended"):
        cache.append(*tokens(n=60))
    assert cache.lengths == (LENGTH, LENGTH)
    assert_same_bits(qkv.attention(q, cache), before)


MEMORY_SCRIPT = """
import resource
import numpy as np
import qkv

cache = qkv.KVCache(1, 2, 64, 1000)
k = np.ones((1, 2, 10, 64), np.float32)
cache.append(k, k)
q = np.ones((1, 2, 1, 64), np.float32)
before = qkv.attention(q, cache)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
for attempt in (lambda: qkv.KVCache(1, 8, 128, 1_000_000), lambda: cache.grow(1000)):
    try:
        attempt()
    except MemoryError:
        print("clean")
assert cache.lengths == (10,)
assert (qkv.attention(q, cache) == before).all()
print("intact")
"""


def test_a_cache_beyond_the_memory_limit_is_a_clean_error() -> None:
    assert resource.getrlimit(resource.RLIMIT_AS)  # what `ulimit -v` sets
    done = subprocess.run([sys.executable, "-c", MEMORY_SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["clean", "clean", "intact"], done.stderr


def test_threads_may_attend_while_another_appends() -> None:
    cache = qkv.KVCache(1, 2, 64, 4096)
    k = np.ones((1, 2, 64, 64), np.float32)
    cache.append(k, k)
    q = np.ones((1, 8, 64, 64), np.float32)
    failures: list[BaseException] = []

    def attend() -> None:
        try:
            for _ in range(60):
                np.testing.assert_allclose(qkv.attention(q, cache), 1, rtol=1e-6)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=attend) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        cache.append(k, k)
    for thread in threads:
        thread.join()
    assert not failures
    assert cache.lengths == (61 * 64,)


def test_threads_may_look_at_a_cache_that_grows() -> None:
    cache = qkv.KVCache(1, 2, 64, 1000)
    failures: list[BaseException] = []
    done = threading.Event()

    def look() -> None:
        try:
            while not done.is_set():
                batch = cache.batch
                assert batch <= len(cache.lengths) <= 200
                assert cache.nbytes % (2 * 1000 * 64 * 4 * 2) == 0
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    for batch in range(2, 200, 4):
        cache.grow(batch)
    done.set()
    thread.join()
    assert not failures


class Reads:
    """An int whose conversion looks at the cache that it is an argument of."""

    def __init__(self, cache: Any, value: int) -> None:
        self._cache, self._value = cache, value

    def __index__(self) -> int:
        assert self._cache.lengths is not None
        return self._value


def test_arguments_may_look_at_the_cache() -> None:
    k, v = tokens()
    cache = pages()
    cache.append(k, v, lengths=[Reads(cache, 30), Reads(cache, 0)])
    cache.share(Reads(cache, 0), Reads(cache, 1), Reads(cache, 20))
    cache.truncate(Reads(cache, 10))
    cache.grow(Reads(cache, 3))
    assert cache.lengths == (10, 10, 0)


def test_repr_says_how_full_it_is() -> None:
    cache = slots(window=20, num_sinks=4)
    cache.append(*tokens())
    assert re.fullmatch(
        r"KVCache\(batch=2, num_kv_heads=2, head_dim=24, capacity=60, value_dim=16, dtype=\('float32', 'float32'\), "
        r"window=20, num_sinks=4; lengths \[50, 50\], 38400 bytes\)",
        repr(cache),
    )
    assert "12 pages free" in repr(pages())
