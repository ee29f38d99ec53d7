"""tools/mutate.py on a project of three lines: each verdict comes out, and the copy is mended after each."""

from pathlib import Path

import mutate
import pytest
from mutate import Copy, ListError, Mutation

CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(toy LANGUAGES C)
enable_testing()
add_executable(toy toy.c)
add_test(NAME toy_adds COMMAND toy)
"""
SOURCE = """
static int add(int a, int b) { return a + b; }
int main(void) {
  int unused = 1;
  return add(2, 1) == 3 && unused ? 0 : 1;
}
"""
PYTEST = """
from pathlib import Path

def test_source_adds():
    assert "a + b" in Path("toy.c").read_text()
"""


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "CMakeLists.txt").write_text(CMAKE)
    (root / "toy.c").write_text(SOURCE)
    (root / "test_toy.py").write_text(PYTEST)
    return Copy(root, tmp_path / "work")


def change(name: str, find: str, replace: str, ctest: str = "toy_adds", pytest: tuple[str, ...] = ()) -> Mutation:
    return Mutation("toy", name, "toy.c", find, replace, "because", ctest, pytest)


RED = change("red", "a + b", "a - b")
RED_BY_PYTEST = change("red-by-pytest", "a + b", "b + a", ctest="", pytest=("test_toy.py",))
SURVIVES = change("survives", "unused = 1", "unused = 2")


def test_each_verdict_and_the_copy_is_mended(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    mutations = [
        RED,
        SURVIVES,
        change("broken", "a + b", "a +"),
        change("absent", "a * b", "a"),
        RED_BY_PYTEST,
    ]
    assert mutate.run(copy, mutations) == 1
    lines = capsys.readouterr().out.splitlines()
    verdicts = {line.split()[0]: line for line in lines if line.startswith("toy/")}
    assert " red " in verdicts["toy/red"]
    assert " SURVIVED " in verdicts["toy/survives"]
    assert " does not build " in verdicts["toy/broken"]
    assert " does not apply " in verdicts["toy/absent"]
    assert " red " in verdicts["toy/red-by-pytest"]
    assert lines[-1] == "2 passed, 3 failed"
    assert (copy.source / "toy.c").read_text() == SOURCE
    assert (copy.root / "toy.c").read_text() == SOURCE


def test_all_red_is_success(copy: Copy) -> None:
    assert mutate.run(copy, [RED]) == 0


def test_a_tree_that_is_red_before_is_refused(copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    (copy.root / "toy.c").write_text(SOURCE.replace("== 3", "== 4"))
    assert mutate.run(copy, [RED]) == 1
    assert "fail on the unbroken tree" in capsys.readouterr().out


@pytest.mark.parametrize("names", [{"ctest": "no_such_case"}, {"ctest": "", "pytest": ("no_such_file.py",)}])
def test_a_mutation_whose_tests_do_not_exist_is_refused(copy: Copy, names: dict[str, str]) -> None:
    with pytest.raises(ListError, match=r"no ctest case matches|pytest could not run"):
        mutate.run(copy, [change("lost", "a + b", "a - b", **names)])


def test_the_copy_follows_the_tree(copy: Copy) -> None:
    copy.sync()
    before = (copy.source / "toy.c").stat().st_mtime_ns
    (copy.root / "test_toy.py").unlink()
    (copy.root / "more.c").write_text("int more;")
    copy.sync()
    assert (copy.source / "more.c").read_text() == "int more;"
    assert not (copy.source / "test_toy.py").exists()
    assert (copy.source / "toy.c").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[mutation]\n", "layer.toml"),
        ('[[mutation]]\nname = "a"\nfile = "f"\nfind = "x"\nreplace = "y"\n', "why"),
        ('[[mutation]]\nname = "a"\nfile = "f"\nfind = "x"\nreplace = "y"\nwhy = "w"\n', "names no test"),
        ('[[mutation]]\nname = "a"\nfile = "f"\nfind = "x"\nreplace = "y"\nwhy = "w"\nctset = "z"\n', "ctset"),
        (2 * '[[mutation]]\nname = "a"\nfile = "f"\nfind = "x"\nreplace = "y"\nwhy = "w"\nctest = "z"\n', "twice"),
    ],
)
def test_a_bad_list_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "layer.toml").write_text(text)
    with pytest.raises(ListError, match=message):
        mutate.load(tmp_path)


def test_find_must_stand_once() -> None:
    with pytest.raises(ListError, match="stands 2 times"):
        mutate.broken("a + b; a + b", RED)
    assert mutate.broken("a + b", RED) == "a - b"


def test_the_lists_of_the_tree_apply() -> None:
    for mutation in mutate.load(mutate.ROOT / "tests" / "mutations"):
        assert mutate.broken((mutate.ROOT / mutation.file).read_text(), mutation)
