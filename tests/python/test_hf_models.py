"""qkv.hf on small seeded models of many architectures, against transformers' own implementations."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support import optional

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch: Any = optional("torch")
transformers: Any = optional("transformers") if torch else None
if transformers:
    import qkv.hf

pytestmark = [pytest.mark.slow, pytest.mark.needs("torch"), pytest.mark.needs("transformers")]

# Hidden states of order 1 after a few layers: float32 arithmetic in two orders.
TOLERANCE = 1e-5
SEED = 20240611
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "vocab_size": 211}
DECODER = {
    **SMALL,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LENGTHS = (19, 7, 1, 12)


@pytest.fixture(autouse=True)
def registered():
    qkv.hf.register()


def build(model_class, config):
    torch.manual_seed(SEED)
    config._attn_implementation = "eager"  # what every architecture has
    return model_class(config).eval()


def padded_ids(side, vocab_size=211):
    """Token ids of unequal lengths with their mask, padded on one side."""
    generator = torch.Generator().manual_seed(SEED)
    width = max(LENGTHS)
    ids = torch.zeros(len(LENGTHS), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        where = slice(width - length, width) if side == "left" else slice(0, length)
        ids[row, where] = torch.randint(3, vocab_size, (length,), generator=generator)
        mask[row, where] = 1
    return {"input_ids": ids, "attention_mask": mask}


def run(model, implementation, inputs, **options):
    model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == implementation
    with torch.inference_mode():
        return model(**inputs, **options)


def difference(a, b, real=None):
    assert a.shape == b.shape
    d = (a - b).abs()
    return (d if real is None else d[real]).max().item()


def assert_same_hidden_states(model, inputs, against="sdpa", real=None):
    expected = run(model, against, inputs, output_hidden_states=True)
    actual = run(model, "qkv", inputs, output_hidden_states=True)
    assert len(actual.hidden_states) == len(expected.hidden_states) > 1
    for index, (a, e) in enumerate(zip(actual.hidden_states, expected.hidden_states, strict=True)):
        assert difference(a, e, real) <= TOLERANCE, f"hidden state {index}, seed {SEED}"


def assert_same_attentions(model, inputs, real=None, field="attentions"):
    expected = run(model, "eager", inputs, output_attentions=True)[field]
    actual = run(model, "qkv", inputs, output_attentions=True)[field]
    assert len(actual) == len(expected) > 0
    for a, e in zip(actual, expected, strict=True):
        assert a is not None
        rows = None if real is None else real[:, None, :].expand(a.shape[:3])
        assert difference(a, e, rows) <= TOLERANCE, f"seed {SEED}"


def assert_same_tokens(model, inputs, against="sdpa", **options):
    texts = []
    for implementation in (against, "qkv"):
        model.set_attn_implementation(implementation)
        model.generation_config.pad_token_id = 0
        texts.append(model.generate(**inputs, max_new_tokens=24, min_new_tokens=24, do_sample=False, **options))
    assert texts[0].shape[1] == inputs["input_ids"].shape[1] + 24
    assert torch.equal(texts[0], texts[1])
    assert len(texts[0][:, -24:].unique()) > 3, "a model that repeats one token proves little"


# --- decoders -----------------------------------------------------------------------------------------------------


@pytest.fixture
def llama():
    return build(transformers.LlamaForCausalLM, transformers.LlamaConfig(**DECODER))


@pytest.mark.parametrize("side", ["left", "right"])
def test_llama_hidden_states(llama, side):
    inputs = padded_ids(side)
    assert_same_hidden_states(llama, inputs, real=inputs["attention_mask"].bool())


def test_llama_without_padding(llama):
    inputs = {"input_ids": padded_ids("left")["input_ids"][:1]}
    assert_same_hidden_states(llama, inputs)


def test_llama_attentions(llama):
    inputs = padded_ids("left")
    assert_same_attentions(llama, inputs, real=inputs["attention_mask"].bool())


def test_attentions_asked_for_by_the_config(llama):
    """The layers then get no output_attentions argument."""
    llama.config.output_attentions = True
    inputs = padded_ids("left")
    assert len(run(llama, "qkv", inputs).attentions) == llama.config.num_hidden_layers
    llama.config.output_attentions = False
    assert run(llama, "qkv", inputs).attentions is None


def test_attentions_of_every_generated_token(llama):
    llama.set_attn_implementation("qkv")
    options = {"output_attentions": True, "return_dict_in_generate": True, "do_sample": False, "pad_token_id": 0}
    generated = llama.generate(**padded_ids("left"), max_new_tokens=3, min_new_tokens=3, **options)
    width = max(LENGTHS)
    shapes = [tuple(step[0].shape) for step in generated.attentions]
    assert shapes == [(4, 8, width, width), (4, 8, 1, width + 1), (4, 8, 1, width + 2)]


def test_llama_greedy_generation_token_for_token(llama):
    assert_same_tokens(llama, padded_ids("left"))


def test_llama_generation_with_a_static_cache(llama):
    assert_same_tokens(llama, padded_ids("left"), cache_implementation="static", disable_compile=True)


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_llama_prompt_in_pieces(llama):
    """Several queries after a filled cache: the mask, not is_causal, carries the offset."""
    ids = padded_ids("left")["input_ids"][:1]
    whole = run(llama, "qkv", {"input_ids": ids}).logits
    first = run(llama, "qkv", {"input_ids": ids[:, :8]}, use_cache=True)
    rest = run(llama, "qkv", {"input_ids": ids[:, 8:]}, past_key_values=first.past_key_values)
    assert difference(torch.cat([first.logits, rest.logits], dim=1), whole) <= TOLERANCE


def test_llama_float_mask_of_the_caller(llama):
    ids = padded_ids("left")["input_ids"][:2]
    n = ids.shape[1]
    mask = torch.zeros(2, 1, n, n)
    mask.masked_fill_(~torch.ones(n, n, dtype=torch.bool).tril(), torch.finfo(torch.float32).min)
    mask += torch.randn(2, 1, n, n, generator=torch.Generator().manual_seed(SEED)).clamp(-1, 1)
    assert_same_hidden_states(llama, {"input_ids": ids, "attention_mask": mask})


def test_llama_packed_sequences(llama):
    ids = padded_ids("left")["input_ids"][:1]
    positions = torch.cat([torch.arange(11), torch.arange(ids.shape[1] - 11)])[None]
    inputs = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    assert_same_hidden_states(llama, inputs)
    alone = run(llama, "qkv", {"input_ids": ids[:, 11:]}).logits
    assert difference(run(llama, "qkv", inputs).logits[:, 11:], alone) <= TOLERANCE


@pytest.mark.needs("torch", "2.13.0")  # transformers asks older ones for what they lack
def test_llama_under_torch_compile(llama):
    inputs = padded_ids("left")
    expected = run(llama, "qkv", inputs).logits
    compiled = torch.compile(llama, backend="eager")
    with torch.no_grad():
        actual = compiled(**inputs).logits
    assert difference(actual, expected, inputs["attention_mask"].bool()) <= TOLERANCE


def test_gpt2():
    config = transformers.GPT2Config(
        vocab_size=211, n_embd=64, n_layer=3, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2
    )
    model = build(transformers.GPT2LMHeadModel, config)
    inputs = padded_ids("left")
    real = inputs["attention_mask"].bool()
    assert_same_hidden_states(model, inputs, real=real)
    assert_same_attentions(model, inputs, real=real)
    assert_same_tokens(model, inputs)


@pytest.mark.parametrize("window", [1, 6, 64])
def test_mistral_sliding_window(window):
    config = transformers.MistralConfig(**DECODER, sliding_window=window)
    model = build(transformers.MistralForCausalLM, config)
    inputs = padded_ids("left")
    assert_same_hidden_states(model, inputs, real=inputs["attention_mask"].bool())
    if window > 1:
        assert_same_tokens(model, inputs)


def test_gemma2_softcap_and_alternating_windows():
    config = transformers.Gemma2Config(
        **DECODER, sliding_window=6, attn_logit_softcapping=0.5, query_pre_attn_scalar=16, final_logit_softcapping=None
    )
    model = build(transformers.Gemma2ForCausalLM, config)
    inputs = padded_ids("left")
    real = inputs["attention_mask"].bool()
    assert_same_hidden_states(model, inputs, against="eager", real=real)
    assert_same_attentions(model, inputs, real=real)


def test_gpt_oss_sinks():
    config = transformers.GptOssConfig(
        **DECODER, sliding_window=6, num_local_experts=4, num_experts_per_tok=2, rope_scaling=None
    )
    model = build(transformers.GptOssForCausalLM, config)
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.sinks.copy_(torch.linspace(-1, 2, 8))
    inputs = padded_ids("left")
    real = inputs["attention_mask"].bool()
    assert_same_hidden_states(model, inputs, against="eager", real=real)
    assert_same_attentions(model, inputs, real=real)
    weights = run(model, "qkv", inputs, output_attentions=True).attentions[0]
    assert (weights.sum(-1) < 0.999)[real[:, None, :].expand(weights.shape[:3])].all(), "the sink takes its share"


# --- encoders and encoder-decoders --------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
def test_bert(side):
    model = build(transformers.BertModel, transformers.BertConfig(**SMALL, num_attention_heads=4))
    inputs = padded_ids(side)
    real = inputs["attention_mask"].bool()
    assert_same_hidden_states(model, inputs, real=real)
    assert_same_attentions(model, inputs, real=real)


def test_modernbert_bidirectional_windows():
    config = transformers.ModernBertConfig(
        **SMALL,
        num_attention_heads=4,
        local_attention=8,
        pad_token_id=0,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = build(transformers.ModernBertModel, config)
    inputs = padded_ids("right")
    assert_same_hidden_states(model, inputs, real=inputs["attention_mask"].bool())


def test_vit():
    config = transformers.ViTConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, image_size=32, patch_size=8
    )
    model = build(transformers.ViTModel, config)
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(SEED))
    assert_same_hidden_states(model, {"pixel_values": pixels})
    assert_same_attentions(model, {"pixel_values": pixels})


def test_t5_position_bias_and_cross_attention():
    config = transformers.T5Config(
        vocab_size=211, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = build(transformers.T5Model, config)
    encoder = padded_ids("right")
    inputs = {**encoder, "decoder_input_ids": padded_ids("left")["input_ids"][:, -9:]}
    expected = run(model, "sdpa", inputs).last_hidden_state
    assert difference(run(model, "qkv", inputs).last_hidden_state, expected) <= TOLERANCE
    assert_same_attentions(model, inputs, field="decoder_attentions")
    assert_same_attentions(model, inputs, field="cross_attentions")


def test_bart_cross_attention():
    config = transformers.BartConfig(
        vocab_size=211,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    model = build(transformers.BartModel, config)
    inputs = {**padded_ids("right"), "decoder_input_ids": padded_ids("left")["input_ids"][:, -9:]}
    expected = run(model, "sdpa", inputs).last_hidden_state
    assert difference(run(model, "qkv", inputs).last_hidden_state, expected) <= TOLERANCE
    assert_same_attentions(model, inputs, field="cross_attentions")
