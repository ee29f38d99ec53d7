"""What 1/sqrt(head_dim) is for: the same queries and keys, scaled and not.

Standard normal queries and keys of 64 positions. Prints a table in Markdown: how large the logits are, how much of them
float16 could hold, how far each softmax is from uniform.
"""

import numpy as np

import qkv

HEAD_DIM, LENGTH, SEED = 512, 64, 7
LARGEST_EXP = {"float16": np.log(65504.0), "float32": 88.72, "float64": 709.78}


def row(name: str, scale: float) -> str:
    rng = np.random.default_rng(SEED)
    q, k, v = rng.standard_normal((3, 1, 1, LENGTH, HEAD_DIM), dtype=np.float32)
    out, logits, stats = qkv.attention(q, k, v, scale=scale, return_logits="scaled", return_stats=True)
    assert np.isfinite(out).all()
    overflow = [f"{np.mean(logits > limit):.0%}" for limit in LARGEST_EXP.values()]
    return " | ".join(
        [
            f"| {name}",
            f"{logits.std():.2f}",
            f"{stats.max_raw.max():.1f}",
            *overflow,
            f"{stats.max_weight.mean():.3f}",
            f"{np.exp(stats.entropy.mean()):.1f} of {LENGTH} |",
        ]
    )


if __name__ == "__main__":
    print("| logits | std | largest | over float16 | over float32 | over float64 | largest weight | keys in use |")
    print("|---|---|---|---|---|---|---|---|")
    print(row("q . k", 1.0))
    print(row("q . k / sqrt(512)", HEAD_DIM**-0.5))
