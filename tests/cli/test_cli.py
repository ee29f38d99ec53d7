"""The program qkv from outside: exit status, standard output and error, JSON, help."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("QKV_CLI", str(ROOT / ".venv" / "bin" / "qkv"))
VERBS = ["info", "selfcheck"]

pytestmark = pytest.mark.skipif(not Path(PROGRAM).exists(), reason=f"{PROGRAM} is not built")


def qkv(*arguments: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program; the variables that change what it does are unset unless given."""
    environment = {k: v for k, v in os.environ.items() if k not in ("QKV_TARGET", "QKV_NUM_THREADS", "OMP_NUM_THREADS")}
    return subprocess.run(
        [PROGRAM, *arguments],
        capture_output="stdout" not in options,
        text=True,
        check=False,
        timeout=120,
        env={**environment, **(env or {})},
        **options,
    )


def best_target() -> str:
    """The first of the available targets."""
    target = json.loads(qkv("info", "--json").stdout)["targets"][0]
    assert isinstance(target, str)
    return target


def assert_usage_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit status 2, nothing on standard output, and one line on standard error with these words."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("qkv: ")
    for word in words:
        assert word in done.stderr


def test_version() -> None:
    done = qkv("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "qkv 0.1.0\n", "")


@pytest.mark.parametrize("arguments", [("--version", "--json"), ("--json", "--version")])
def test_version_as_json(arguments: tuple[str, str]) -> None:
    assert json.loads(qkv(*arguments).stdout) == {"version": "0.1.0"}


def test_help_teaches_by_examples() -> None:
    done = qkv("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for word in [*VERBS, "Examples:", "--json", "QKV_TARGET", "Exit status"]:
        assert word in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb(verb: str) -> None:
    done = qkv(verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Examples:" in done.stdout
    assert f"qkv {verb}" in done.stdout
    assert "--json" in done.stdout
    assert qkv("--help").stdout != done.stdout


def test_help_is_narrow_enough_for_a_terminal() -> None:
    for arguments in [("--help",), *((verb, "--help") for verb in VERBS)]:
        assert max(map(len, qkv(*arguments).stdout.splitlines())) <= 120


def test_help_does_not_need_a_right_environment() -> None:
    assert qkv("--help", env={"QKV_TARGET": "abacus"}).returncode == 0


def test_info() -> None:
    done = qkv("info")
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["version"] == "0.1.0"
    assert set(lines) == {"version", "target", "targets", "threads", "cpu", "compiler", "build", "highway"}
    assert lines["target"] == lines["targets"].split(", ")[0]
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("arguments", [("info", "--json"), ("--json", "info")])
def test_info_as_json(arguments: tuple[str, str]) -> None:
    document = json.loads(qkv(*arguments).stdout)
    assert document["version"] == "0.1.0"
    assert document["target"] == document["targets"][0]
    assert document["targets"][-1] == "reference"
    assert document["threads"] >= 1
    assert document["compiler"]
    assert document["cpu"]


def test_info_follows_the_environment() -> None:
    document = json.loads(qkv("info", "--json", env={"QKV_TARGET": "reference", "QKV_NUM_THREADS": "3"}).stdout)
    assert document["target"] == "reference"
    assert document["threads"] == 3


@pytest.mark.parametrize("verb", VERBS)
def test_unknown_target_in_the_environment(verb: str) -> None:
    assert_usage_error(qkv(verb, env={"QKV_TARGET": "abacus"}), "QKV_TARGET", "abacus", "reference")


def test_unreadable_number_of_threads_in_the_environment() -> None:
    assert_usage_error(qkv("info", env={"QKV_NUM_THREADS": "many"}), "QKV_NUM_THREADS", "many")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["a verb is missing", "info", "selfcheck"]),
        (("--json",), ["a verb is missing"]),
        (("inspect",), ["inspect"]),
        (("--jsn", "info"), ["--jsn"]),
        (("info", "--jsn"), ["--jsn", "qkv info --help"]),
        (("info", "more"), ["more"]),
        (("info", "selfcheck"), ["selfcheck"]),
        (("selfcheck", "--seed"), ["--seed"]),
        (("selfcheck", "--seed", "lucky"), ["--seed", "lucky"]),
        (("selfcheck", "--seed=-1"), ["--seed", "'-1'"]),
        (("selfcheck", "--seed", ""), ["--seed"]),
        (("selfcheck", "--seed", "1 "), ["--seed", "'1 '"]),
        (("selfcheck", "--seed", "1.5"), ["--seed", "1.5"]),
        (("selfcheck", "--seed", "99999999999999999999"), ["--seed", "99999999999999999999"]),
        (("selfcheck", "--target", "abacus"), ["--target", "abacus", "reference"]),
        (("selfcheck", "--target", "two\nlines"), ["--target", "two lines"]),
        (("selfcheck", "--target", ""), ["--target"]),
        (("selfcheck", "--quick=maybe"), ["--quick"]),
    ],
    ids=" ".join,
)
def test_bad_arguments(arguments: tuple[str, ...], words: list[str]) -> None:
    assert_usage_error(qkv(*arguments), *words)


def test_selfcheck_quick() -> None:
    target = best_target()
    done = qkv("selfcheck", "--quick", "--target", target)
    assert (done.returncode, done.stderr) == (0, "")
    assert "checks passed" in done.stdout.splitlines()[-1]
    assert "\x1b" not in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"{target} ")]
    assert len(lines) > 30
    assert all(" ok" in line for line in lines)


def test_selfcheck_as_json() -> None:
    target = best_target()
    done = qkv("selfcheck", "--quick", "--target", target, "--seed", "18446744073709551615", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["passed"] is True
    assert document["num_failed"] == 0
    assert document["seed"] == 18446744073709551615
    assert document["targets"] == [target]
    assert {check["section"] for check in document["checks"]} == {"accuracy", "bits", "module"}
    for check in document["checks"]:
        assert check["passed"] is True
        assert 0 <= check["worst"] <= check["bound"]
        assert check["target"] == target
    # A number that is always 0 would say that nothing is compared.
    accuracies = [check["worst"] for check in document["checks"] if check["section"] == "accuracy"]
    assert sum(worst > 0 for worst in accuracies) > len(accuracies) // 2
    assert "shape [2, 32, 512], all finite" in document["checks"][-1]["where"]


def test_selfcheck_repeats_with_its_seed() -> None:
    def numbers(seed: str) -> list[float]:
        done = qkv("selfcheck", "--quick", "--target", best_target(), "--json", "--seed", seed)
        return [check["worst"] for check in json.loads(done.stdout)["checks"]]

    first = numbers("5")
    assert numbers("5") == first
    assert numbers("6") != first


@pytest.mark.slow
def test_selfcheck_of_everything() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = qkv("selfcheck", "--json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    document = json.loads(done.stdout)
    assert done.returncode == 0, [check for check in document["checks"] if not check["passed"]]
    assert document["targets"] == json.loads(qkv("info", "--json").stdout)["targets"]
    # Of the processor: on a busy machine the clock says little.
    assert after.ru_utime - before.ru_utime < 30


def test_full_disk_is_an_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("w") as full:
        done = qkv("info", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == "qkv: cannot write the output: No space left on device\n"


def test_closed_standard_output_is_an_error() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" info >&-', PROGRAM], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr == "qkv: cannot write the output: Bad file descriptor\n"


@pytest.mark.parametrize(
    ("command", "status"),
    [('"$0" bogus 2>&-', 2), ('"$0" bogus 2>/dev/full', 2), ('"$0" info >/dev/full 2>/dev/full', 1)],
)
def test_nobody_to_tell_is_no_crash(command: str, status: int) -> None:
    done = subprocess.run(["sh", "-c", command, PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status


@pytest.mark.parametrize("disposition", ["default", "ignored"])
def test_reader_that_leaves_is_no_crash(disposition: str) -> None:
    """`qkv selfcheck | head -1`, where a write to the pipe is a signal or, as under nohup, an error."""
    trap = "trap '' PIPE; " if disposition == "ignored" else ""
    script = f'{trap}{{ "$0" selfcheck --quick; echo "status $?" >&2; }} | head -1'
    done = subprocess.run(["bash", "-c", script, PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith("qkv 0.1.0 ")
    assert done.stderr == ("status 141\n" if disposition == "default" else "status 1\n")
