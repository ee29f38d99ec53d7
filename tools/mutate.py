#!/usr/bin/env python3
"""Breaks the code on purpose, one small change at a time, and shows that each turns a test red.

The changes are listed in tests/mutations/<layer>.toml:

    [[mutation]]
    name = "rescale-forgotten"        # unique in the file
    file = "src/kernels/x-inl.h"      # the file that is broken
    find = "a * b"                    # stands there exactly once
    replace = "a"
    why = "what a person could get wrong here"
    ctest = "Forward.*Merge"          # a regular expression of ctest cases, and / or
    pytest = ["tests/python/x.py"]    # files or node ids; at least one test of all these must fail

Works on a copy of the tree in build/mutate, so the tree itself is never broken. First everything named must pass there
unbroken. Exit status 1: a change survived, did not apply, did not build, or named no test.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from files import ROOT, tree_files


@dataclass(frozen=True)
class Mutation:
    """One entry of a list; the fields are those of the file."""

    layer: str
    name: str
    file: str
    find: str
    replace: str
    why: str
    ctest: str = ""
    pytest: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name that is printed and that --only takes."""
        return f"{self.layer}/{self.name}"


class ListError(Exception):
    """A list that can not be used as it stands."""


def load(folder: Path, layer: str | None = None) -> list[Mutation]:
    """All mutations of a folder of lists, or of one layer's list. Raises ListError."""
    paths = sorted(folder.glob("*.toml")) if layer is None else [folder / f"{layer}.toml"]
    mutations = []
    for path in paths:
        try:
            entries = tomllib.loads(path.read_text()).get("mutation", [])
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ListError(f"{path}: {error}") from error
        mutations += [_parse(path.stem, entry) for entry in entries]
    titles = [mutation.title for mutation in mutations]
    for title in titles:
        if titles.count(title) > 1:
            raise ListError(f"{title} is listed twice")
    return mutations


def _parse(layer: str, entry: dict[str, object]) -> Mutation:
    try:
        pytest = entry.get("pytest", [])
        if not isinstance(pytest, list):
            raise TypeError("pytest must be a list")
        mutation = Mutation(layer=layer, **{**entry, "pytest": tuple(pytest)})  # type: ignore[arg-type]
    except TypeError as error:
        raise ListError(f"{layer}: {entry.get('name', entry)}: {error}") from error
    if not mutation.ctest and not mutation.pytest:
        raise ListError(f"{mutation.title}: names no test")
    return mutation


def broken(text: str, mutation: Mutation) -> str:
    """The text with the mutation applied. Raises ListError unless `find` stands in it exactly once."""
    count = text.count(mutation.find)
    if count != 1:
        raise ListError(f"{mutation.title}: 'find' stands {count} times in {mutation.file}, expected once")
    return text.replace(mutation.find, mutation.replace)


class Copy:
    """A copy of the tree with a build of its own."""

    def __init__(self, root: Path, folder: Path, pytest_targets: tuple[str, ...] = ()) -> None:
        """Root is the tree, folder where the copy and its build go, pytest_targets what pytest needs built."""
        self.root = root
        self.pytest_targets = pytest_targets
        self.source = folder / "source"
        self.build_folder = folder / "build"

    def sync(self) -> None:
        """Makes the copy equal to the tree; what is equal keeps its time, so that a build does no more than it must."""
        wanted = set(tree_files(self.root))
        for path in wanted:
            self.write(path, (self.root / path).read_bytes(), (self.root / path).stat().st_mode)
        for path in set(tree_files(self.source)) - wanted:
            (self.source / path).unlink()

    def write(self, path: Path, data: bytes, mode: int | None = None) -> None:
        """Writes a file of the copy, if it is not so already."""
        target = self.source / path
        if target.is_file() and target.read_bytes() == data:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        if mode is not None:
            target.chmod(mode)

    def configure(self, with_python: bool) -> None:
        """Configures the build: the quick targets alone, warnings allowed. Raises CalledProcessError."""
        options = {
            "CMAKE_BUILD_TYPE": "RelWithDebInfo",
            "QKV_LIMIT_TARGETS": "ON",
            "QKV_EMULATE_PAIRS": "ON",
            "QKV_BUILD_PYTHON": "ON" if with_python else "OFF",
            "Python_EXECUTABLE": sys.executable,
        }
        command = ["cmake", "-S", str(self.source), "-B", str(self.build_folder), "-G", "Ninja", "--log-level=WARNING"]
        subprocess.run(
            [*command, *(f"-D{key}={value}" for key, value in options.items())], check=True, stdout=subprocess.DEVNULL
        )

    def build(self, mutation: Mutation | None = None) -> bool:
        """Whether the copy builds, or what the tests of a mutation need; what the compiler said is printed if not."""
        jobs = os.environ.get("QKV_JOBS", str(os.cpu_count()))
        command = ["cmake", "--build", str(self.build_folder), "-j", jobs]
        if targets := self._targets_of(mutation) if mutation else []:
            command += ["--target", *targets]
        return _run(command, self.source, show_failure=True)

    def _targets_of(self, mutation: Mutation) -> list[str]:
        """The programs of the cases that the mutation names; [] (all) where a case runs something else."""
        targets = set(self.pytest_targets if mutation.pytest else ())
        if mutation.ctest:
            listing = subprocess.run(
                [*self._ctest(mutation), "--show-only=json-v1"], capture_output=True, text=True, check=True
            )
            for test in json.loads(listing.stdout)["tests"]:
                program = Path(test.get("command", [""])[0])
                if not program.is_relative_to(self.build_folder):
                    return []
                targets.add(str(program.relative_to(self.build_folder)))
        return sorted(targets)

    def _ctest(self, mutation: Mutation) -> list[str]:
        return ["ctest", "--test-dir", str(self.build_folder), "-R", mutation.ctest]

    def tests_pass(self, mutation: Mutation, show_failure: bool = False) -> bool:
        """Whether all tests that the mutation names pass. Raises ListError if it names none that exists."""
        if mutation.ctest and not self._ctest_passes(mutation, show_failure):
            return False
        return not mutation.pytest or self._pytest_passes(mutation, show_failure)

    def _ctest_passes(self, mutation: Mutation, show_failure: bool) -> bool:
        command = self._ctest(mutation)
        listing = subprocess.run([*command, "-N"], capture_output=True, text=True, check=False).stdout
        if re.search(r"^Total Tests: 0$", listing, re.MULTILINE):
            raise ListError(f"{mutation.title}: no ctest case matches '{mutation.ctest}'")
        run = [*command, "--output-on-failure", "--stop-on-failure", "--timeout", "300"]
        return _run(run, self.source, show_failure=show_failure)

    def _pytest_passes(self, mutation: Mutation, show_failure: bool) -> bool:
        # The package and the program of this build, and no bytecode of another one.
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.build_folder / "python"),
            "QKV_CLI": str(self.build_folder / "bin" / "qkv"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutation.pytest]
        try:
            done = subprocess.run(
                command, cwd=self.source, env=environment, capture_output=True, text=True, check=False, timeout=900
            )
        except subprocess.TimeoutExpired:  # a breakage that hangs has been noticed
            return False
        if done.returncode not in (0, 1):  # 1: tests failed; all else: none ran
            raise ListError(f"{mutation.title}: pytest could not run {list(mutation.pytest)}:\n{done.stdout[-2000:]}")
        if done.returncode == 1 and show_failure:
            print(done.stdout[-4000:])
        return done.returncode == 0


def _run(command: list[str], folder: Path, show_failure: bool) -> bool:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode and show_failure:
        print((done.stdout + done.stderr)[-4000:])
    return done.returncode == 0


def try_one(copy: Copy, mutation: Mutation) -> str:
    """Breaks the copy, builds, tests, mends it. The verdict: "red" is what is wanted."""
    path = Path(mutation.file)
    original = (copy.source / path).read_text()
    try:
        copy.write(path, broken(original, mutation).encode())
        if not copy.build(mutation):
            return "does not build"
        return "SURVIVED" if copy.tests_pass(mutation) else "red"
    except (ListError, OSError) as error:
        print(error)
        return "does not apply"
    finally:
        copy.write(path, original.encode())


def check_unbroken(copy: Copy, mutations: list[Mutation]) -> bool:
    """Whether the copy builds and every test named passes before anything is broken."""
    if not copy.build():
        return False
    checked = set()
    for mutation in mutations:
        if (mutation.ctest, mutation.pytest) in checked:
            continue
        checked.add((mutation.ctest, mutation.pytest))
        if not copy.tests_pass(mutation, show_failure=True):
            print(f"{mutation.title}: its tests fail on the unbroken tree")
            return False
    return True


def run(copy: Copy, mutations: list[Mutation]) -> int:
    """Tries all; prints a line each. 0 if every one turned a test red."""
    copy.sync()
    copy.configure(with_python=any(mutation.pytest for mutation in mutations))
    print(f"unbroken: building, then the tests that {len(mutations)} mutations name ...", flush=True)
    if not check_unbroken(copy, mutations):
        return 1
    width = max(len(mutation.title) for mutation in mutations)
    bad = 0
    for mutation in mutations:
        start = time.monotonic()
        verdict = try_one(copy, mutation)
        bad += verdict != "red"
        print(
            f"{mutation.title:<{width}}  {verdict:<14}  {time.monotonic() - start:5.1f} s  {mutation.why}", flush=True
        )
    print(f"{len(mutations) - bad} passed, {bad} failed")
    return bool(bad)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="./dev mutate", description="Breaks the code; the tests must notice.")
    parser.add_argument("--layer", help="the list tests/mutations/LAYER.toml alone")
    parser.add_argument("--only", metavar="NAME", help="one mutation: NAME or LAYER/NAME")
    parser.add_argument("--list", action="store_true", help="show them, run nothing")
    options = parser.parse_args(arguments)
    try:
        mutations = load(ROOT / "tests" / "mutations", options.layer)
        if options.only:
            mutations = [one for one in mutations if options.only in (one.name, one.title)]
        if not mutations:
            raise ListError("no such mutation; --list shows them")
        for mutation in mutations:
            broken((ROOT / mutation.file).read_text(), mutation)
        if options.list:
            for mutation in mutations:
                print(f"{mutation.title}: {mutation.why} ({mutation.file})")
            return 0
        targets = ("qkv_core", "qkv_cli", "qkv_python_stage")
        return run(Copy(ROOT, ROOT / "build" / "mutate", targets), mutations)
    except (ListError, OSError) as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
