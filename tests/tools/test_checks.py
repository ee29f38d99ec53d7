"""The checks of ./dev lint see what they are there to see."""

from pathlib import Path

import check_includes
import check_sizes
import check_words
import pytest


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")


@pytest.mark.parametrize(
    ("source", "include", "problem"),
    [
        ("src/kernels/a.cc", '"base/b.h"', None),
        ("src/kernels/a.cc", '"kernels/k.h"', None),
        ("src/kernels/a.cc", '"qkv/q.h"', None),
        ("src/kernels/a.cc", "<hwy/highway.h>", None),
        ("src/kernels/a.cc", '"hwy/highway.h"', None),
        ("src/kernels/a.cc", "<vector>", None),
        ("src/base/b.cc", '"kernels/k.h"', "points up"),
        ("src/kernels/a.cc", '"attention/x.h"', "points up"),
        ("src/kernels/a.cc", '"reference/r.h"', "points up"),
        ("src/attention/x.cc", '"c_api/c.h"', "points up"),
        ("src/base/b.cc", '"base/absent.h"', "no such file"),
        ("src/base/b.cc", '"qkv/absent.h"', "no public header"),
        ("src/attention/x.cc", "<hwy/highway.h>", "may see hwy/"),
        ("src/base/b.cc", "<nlohmann/json.hpp>", None),
        ("src/attention/x.cc", "<nlohmann/json.hpp>", "may see nlohmann/"),
        ("src/mystery/m.cc", "<vector>", "no known layer"),
        ("include/qkv/q.h", '"base/b.h"', "public headers only"),
        ("apps/qkv/main.cc", '"attention/x.h"', None),
        ("tests/base/b_test.cc", '"attention/x.h"', None),
    ],
)
def test_includes(tmp_path: Path, source: str, include: str, problem: str | None) -> None:
    make(
        tmp_path,
        "src/base/b.h",
        "src/kernels/k.h",
        "src/attention/x.h",
        "src/reference/r.h",
        "src/c_api/c.h",
        "include/qkv/q.h",
        source,
    )
    found = check_includes.problems_of(Path(source), f"// first line\n#include {include}\n", tmp_path)
    if problem is None:
        assert found == []
    else:
        assert len(found) == 1
        assert problem in found[0]


def test_every_layer_folder_has_a_rank() -> None:
    folders = {path.name for path in (check_includes.ROOT / "src").iterdir() if path.is_dir()}
    assert folders <= set(check_includes.RANKS)


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "/wo" + "rk/main", "../sha" + "red/x"])
def test_words(word: str) -> None:
    found = check_words.problems_of("f", f"fine\n// {word}: later\n")
    assert len(found) == 1
    assert found[0].startswith("f:2: ")
    assert check_words.problems_of("f", "a worker shared the library; todos is no word\n") == []


def test_size_limits() -> None:
    assert check_sizes.limits_of(Path("include/qkv/x.h")) == (300, 400)
    assert check_sizes.limits_of(Path("src/base/x.cc")) == (500, 800)
