"""Which of qkv's targets uses which instructions, and which runs therefore say something about them."""

from __future__ import annotations

from typing import Any

#: Of CPUs, beside the names of qkv's targets: what the best target may use.
BF16_DOT = "avx512_bf16"


def covers(target: str, needed: str) -> bool:
    """Whether a target is that one, or that one with more: "avx512_bf16" computes float32 as "avx512" does."""
    return target == needed or target.startswith(needed + "_")


def has(machine: dict[str, Any], needed: str) -> bool:
    """Whether the CPU has a target or an instruction."""
    if any(covers(target, needed) for target in machine["targets"]):
        return True
    return needed == BF16_DOT and bool(machine.get("bf16_dot_peak"))


def targets_for(machine: dict[str, Any], needs: str, lacks: str) -> list[str]:
    """The targets whose runs count, the one in use first.

    An instruction that is no target's name is used by the best target, and by none below it.
    """
    own, every = machine["target"], machine["targets"]
    order = [own, *(target for target in every if target not in (own, "reference"))]
    if lacks:
        return [target for target in order if not _uses(machine, target, lacks)]
    if not needs:
        return [own]
    if any(covers(target, needs) for target in every):
        return [target for target in order if covers(target, needs)]
    return [target for target in order if _uses(machine, target, needs)]


def _uses(machine: dict[str, Any], target: str, instruction: str) -> bool:
    if not has(machine, instruction):
        return False
    if any(covers(other, instruction) for other in machine["targets"]):
        return covers(target, instruction)
    return bool(target == machine["targets"][0])
