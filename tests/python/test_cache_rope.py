"""Caches with a Rope: what they give is attention over turned rows and keys."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import assert_same_bits, optional

import qkv
from qkv.position import Rope

ml_dtypes: Any = optional("ml_dtypes")
torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")
needs_transformers = pytest.mark.needs("transformers")

HEADS, KV_HEADS, DIM, LENGTH = 4, 2, 32, 50
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False}
#: What they are made of; made by each test, as what a module keeps is a leak to the compiled part.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "interleaved": {"base": 500.0, "layout": "interleaved"},
    "partial": {"rotary_dim": 12},
    "llama3": {"scaling": LLAMA3, "max_position": 512},
    "yarn": {"scaling": YARN},
}


def make_rope(name: str = "plain") -> Rope:
    return Rope(DIM, **OPTIONS[name])


@pytest.fixture(params=OPTIONS)
def rope(request: pytest.FixtureRequest) -> Rope:
    return make_rope(request.param)


def normal(heads: int, n: int = LENGTH, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, heads, n, DIM)).astype(np.float32)


def slots(rope: Any, **options: Any) -> qkv.KVCache:
    return qkv.KVCache(1, KV_HEADS, DIM, 60, rope=rope, **options)


def pages(rope: Any, **options: Any) -> qkv.PagedKVCache:
    return qkv.PagedKVCache(1, KV_HEADS, DIM, 8, page_size=8, rope=rope, **options)


BOTH = pytest.mark.parametrize("make", [slots, pages])


@BOTH
def test_a_cache_gives_the_bits_of_turned_arrays(make: Any, rope: Rope) -> None:
    q, k, v = normal(HEADS), normal(KV_HEADS, seed=1), normal(KV_HEADS, seed=2)
    cache = make(rope)
    cache.append(k, v)
    got = qkv.attention(q, cache, causal=True, return_lse=True, return_weights=True)
    expected = qkv.attention(rope.apply(q), rope.apply(k), v, causal=True, return_lse=True, return_weights=True)
    for actual, wanted in zip(got, expected, strict=True):
        assert_same_bits(actual, wanted)
    assert_same_bits(
        qkv.reference.attention(q, cache, causal=True),
        qkv.reference.attention(rope.apply(q), rope.apply(k), v, causal=True),
    )


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_token_by_token_is_one_pass(make: Any, rope: Rope, dtype: str) -> None:
    q, k, v = normal(HEADS), normal(KV_HEADS, seed=1), normal(KV_HEADS, seed=2)
    whole, growing = make(rope, dtype=dtype), make(rope, dtype=dtype)
    whole.append(k, v)
    expected = qkv.attention(q, whole, causal=True)
    for i in range(LENGTH):
        row = slice(i, i + 1)
        growing.append(k[:, :, row], v[:, :, row])
        assert_same_bits(qkv.attention(q[:, :, row], growing), np.ascontiguousarray(expected[:, :, row]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_keys_of_float32_are_turned_before_they_are_rounded(dtype: str) -> None:
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    rope = make_rope()
    q, k, v = normal(HEADS), normal(KV_HEADS, seed=1), normal(KV_HEADS, seed=2)
    cache = slots(rope, dtype=dtype)
    cache.append(k, v)
    once = rope.apply(k.astype(np.float64)).astype(kind)
    expected = qkv.attention(rope.apply(q), once, v.astype(kind), causal=True)
    assert_same_bits(qkv.attention(q, cache, causal=True), expected)


def test_a_ring_keeps_distances() -> None:
    rope = make_rope()
    q, k, v = (normal(heads, 200, seed) for seed, heads in enumerate([HEADS, KV_HEADS, KV_HEADS]))
    cache = qkv.KVCache(1, KV_HEADS, DIM, 34, window=30, num_sinks=4, rope=rope)
    distance = np.arange(200)[:, None] - np.arange(200)[None, :]
    mask = (distance >= 0) & ((distance < 30) | (np.arange(200) < 4))
    expected = qkv.attention(rope.apply(q), rope.apply(k), v, mask=mask)
    for i in range(200):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        assert_same_bits(qkv.attention(q[:, :, i : i + 1], cache), np.ascontiguousarray(expected[:, :, i : i + 1]))


def test_rows_are_turned_by_the_offset_that_is_given() -> None:
    rope = make_rope()
    q, k, v = normal(HEADS, 3), normal(KV_HEADS, seed=1), normal(KV_HEADS, seed=2)
    cache = slots(rope)
    cache.append(k, v)
    expected = qkv.attention(rope.apply(q, first=7), rope.apply(k), v, causal=True, query_offset=7)
    assert_same_bits(qkv.attention(q, cache, causal=True, query_offset=7), expected)


@needs_torch
def test_pytorch_tensors() -> None:
    rope = make_rope("llama3")
    q, k, v = (torch.from_numpy(normal(h, seed=h)).to(torch.bfloat16) for h in (HEADS, KV_HEADS, KV_HEADS))
    cache = slots(rope, dtype=torch.bfloat16)
    cache.append(k, v)
    assert torch.equal(
        qkv.attention(q, cache, causal=True), qkv.attention(rope.apply(q), rope.apply(k), v, causal=True)
    )


@needs_torch
@needs_transformers
def test_a_llama_step_is_that_of_transformers() -> None:
    llama = optional("transformers.models.llama.modeling_llama")
    config = optional("transformers").LlamaConfig(
        hidden_size=HEADS * DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=DIM,
        max_position_embeddings=512,
        rope_parameters=LLAMA3,
    )
    q, k, v = (torch.from_numpy(normal(h, seed=i)) for i, h in enumerate((HEADS, KV_HEADS, KV_HEADS)))
    positions = torch.arange(LENGTH)[None]
    cosines, sines = llama.LlamaRotaryEmbedding(config)(v, positions)
    turned_q, turned_k = llama.apply_rotary_pos_emb(q, k, cosines, sines)
    group = HEADS // KV_HEADS
    expected = torch.nn.functional.scaled_dot_product_attention(
        turned_q.double(),
        turned_k.double().repeat_interleave(group, 1),
        v.double().repeat_interleave(group, 1),
        is_causal=True,
    )
    cache = slots(Rope(DIM, scaling=config.rope_parameters, max_position=512))
    prompt = LENGTH - 5
    cache.append(k[:, :, :prompt], v[:, :, :prompt])
    rows = [qkv.attention(q[:, :, :prompt].contiguous(), cache, causal=True)]
    for i in range(prompt, LENGTH):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        rows.append(qkv.attention(q[:, :, i : i + 1].contiguous(), cache))
    # There angles are of float32: off by 50 * 2^-24 radians, on logits of some units.
    torch.testing.assert_close(torch.cat(rows, 2).double(), expected, rtol=0, atol=2e-5)


@BOTH
def test_the_rope_is_a_property(make: Any, rope: Rope) -> None:
    cache = make(rope)
    assert isinstance(cache.rope, Rope)
    assert repr(cache.rope) == repr(rope)
    np.testing.assert_array_equal(cache.rope.frequencies(), rope.frequencies())
    assert cache.rope.attention_factor == rope.attention_factor
    assert cache.rope.scaling == rope.scaling
    assert_same_bits(cache.rope.apply(normal(2)), rope.apply(normal(2)))
    assert f"rope={rope!r}" in repr(cache)
    assert make(None).rope is None
    with pytest.raises(AttributeError):
        cache.rope = None


@BOTH
def test_files_bring_it_back(make: Any, rope: Rope, tmp_path: Path) -> None:
    cache = make(rope, dtype=("bfloat16", "int8"))
    cache.append(normal(KV_HEADS), normal(KV_HEADS))
    cache.save(tmp_path / "cache.safetensors")
    loaded = type(cache).load(tmp_path / "cache.safetensors")
    assert repr(loaded) == repr(cache)
    np.testing.assert_array_equal(loaded.rope.frequencies(), rope.frequencies())
    copied = pickle.loads(pickle.dumps(loaded.rope))
    assert repr(copied) == repr(rope)
    assert_same_bits(copied.apply(normal(2)), rope.apply(normal(2)))
    q = normal(HEADS, 1)
    for each in (cache, loaded):
        each.append(normal(KV_HEADS, 3), normal(KV_HEADS, 3))
    assert_same_bits(qkv.attention(q, loaded), qkv.attention(q, cache))


def test_the_file_says_how_it_turns(tmp_path: Path) -> None:
    path = tmp_path / "cache.safetensors"
    slots(make_rope("llama3")).save(path)
    data = path.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert metadata["rope.scaling"] == "llama3"
    assert float(metadata["rope.base"]) == 500000.0
    assert int(metadata["rope.original_max_position"]) == 64


@BOTH
def test_errors(make: Any) -> None:
    with pytest.raises(
        qkv.ValueError, match=r"rope: expected a Rope of head_dim = 32, that of the keys, got one of 16"
    ):
        make(Rope(16))
    dynamic = Rope(DIM, scaling={"rope_type": "dynamic", "factor": 2.0}, max_position=64)
    with pytest.raises(
        qkv.ValueError, match=r"rope: dynamic scaling changes the frequencies .*use yarn, llama3 or lin"
    ):
        make(dynamic)
    with pytest.raises(TypeError, match=r"rope: expected a qkv.position.Rope, got dict"):
        make({"rope_type": "linear"})
    cache = make(make_rope())
    cache.append(normal(KV_HEADS), normal(KV_HEADS))
    with pytest.raises(qkv.ValueError, match=r"query_offset: the 1 rows of batch 0 are at positions 9007199254740993"):
        qkv.attention(normal(HEADS, 1), cache, query_offset=2**53 + 1)


@BOTH
def test_an_error_leaves_the_cache_as_it_was(make: Any) -> None:
    cache = make(make_rope())
    cache.append(normal(KV_HEADS), normal(KV_HEADS))
    q = normal(HEADS, 1)
    before = qkv.attention(q, cache)
    with pytest.raises(qkv.ValueError, match="nothing was appended"):
        cache.append(normal(KV_HEADS, 60), normal(KV_HEADS, 60))
    assert cache.lengths == (LENGTH,)
    assert_same_bits(qkv.attention(q, cache), before)
