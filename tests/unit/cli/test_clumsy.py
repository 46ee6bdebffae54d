"""Every command that reads a file or a folder, given what is none of it: a mistake, never a bug."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from maestroctl.cli.exit_codes import ExitCode, exit_code_of
from maestroctl.cli.main import app

ROW = '{"source": "s", "app": "a", "job_id": "j", "task_id": "t", "stage_index": 0'


def missing(path: Path) -> None:
    """Nothing is there."""


def folder(path: Path) -> None:
    path.mkdir()


def empty(path: Path) -> None:
    path.touch()


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def words(path: Path) -> None:
    path.write_text("not [[ a file of ours\n")


def json_list(path: Path) -> None:
    path.write_text("[]\n")


def deep(path: Path) -> None:
    path.write_text("a = " + "[" * 5000 + "]" * 5000)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


FILES = (missing, folder, empty, binary, words, json_list, deep, loop)
COMMANDS = (
    ["simulate", "X"],
    ["simulate", "SIM", "--data", "X"],
    ["simulate", "SIM", "--event-logs", "FILE"],
    ["experiments", "run", "overcommit", "--quick", "--out", "FILE"],
    ["experiments", "run", "slo_sweep", "--quick", "--data", "X", "--out", "OUT"],
    ["replay", "X"],
    ["profile", "show", "X.toml"],
    ["profile", "show", "X"],
    ["profile", "diff", "X", "X.toml"],
    ["profile", "run", "--fleet", "X"],
    ["explain", "job-1", "--state", "sqlite:///X"],
    ["train", "--from-history", "--state", "sqlite:///X", "--out", "OUT/m"],
    ["train", "--stages", "X", "--out", "OUT/m"],
    ["train", "--stages", "TRACES", "--out", "OUT"],
    ["evaluate", "--stages", "X"],
    ["evaluate", "--stages", "TRACES", "--artifact", "X"],
    ["predictor", "add-model", "m", "--outcomes", "X", "--out", "OUT/m"],
    ["predictor", "add-model", "m", "--outcomes", "FILE", "--out", "OUT"],
    ["predict", "@X"],
    ["predict", "hello", "--artifact", "X"],
    ["predict", "hello", "--state", "sqlite:///X"],
    ["models", "fetch", "X"],
)


def run(args: list[str]) -> tuple[int, Result]:
    result = CliRunner().invoke(app, args)
    exc = result.exception
    if exc is None or isinstance(exc, SystemExit):
        return result.exit_code, result
    return exit_code_of(exc), result


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with what is right."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAESTROCTL_HOME", str(tmp_path / "home"))
    (tmp_path / "SIM").write_text('[run]\njobs = 2\n[[model]]\nname = "m"\nweights = "7 GB"\n')
    (tmp_path / "FILE").touch()
    (tmp_path / "OUT").mkdir()
    (tmp_path / "TRACES").mkdir()
    (tmp_path / "TRACES" / "stages_s.jsonl").write_text(ROW + ', "output_tokens": 5}\n')
    return tmp_path


@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_what_is_no_such_file_is_a_mistake_and_no_bug(
    args: list[str], make: Callable[[Path], None], place: Path
) -> None:
    if args[0] in ("train", "evaluate", "predict", "predictor"):
        pytest.importorskip("lightgbm")
    for name in ("X", "X.toml"):
        make(place / name)
    code, result = run(args)
    if args == ["predict", "@X"] and make in (empty, words, json_list, deep):
        assert code == ExitCode.OK, "any text can be asked about"
        return
    assert code in (ExitCode.USAGE, ExitCode.FAILED), result.exception
    assert result.stdout == ""
    assert os.listdir(place / "OUT") == [], "nothing was begun"


@pytest.mark.parametrize(
    "row",
    [
        ROW + ', "output_tokens": NaN}',
        ROW + ', "output_tokens": "many"}',
        ROW + ', "output_tokens": -5}',
        ROW + ', "output_tokens": 1e400}',
        ROW + ', "prompt_tokens": -1, "output_tokens": 3}',
        ROW + ', "role": 7, "output_tokens": 3}',
        ROW.replace('"a"', "5") + ', "output_tokens": 3}',
        ROW.replace('"j"', "[1]") + ', "output_tokens": 3}',
        ROW.replace("0", '"first"') + ', "output_tokens": 3}',
        "{",
        "7",
    ],
)
@pytest.mark.parametrize(
    "args",
    [["train", "--stages", "BAD", "--out", "OUT/m"], ["evaluate", "--stages", "BAD"],
     ["simulate", "SIM", "--data", "BAD"]],
    ids=lambda args: args[0],
)  # fmt: skip
def test_a_row_of_nonsense_in_the_traces_is_no_bug(args: list[str], row: str, place: Path) -> None:
    pytest.importorskip("lightgbm")
    (place / "BAD").mkdir()
    good = ROW + ', "output_tokens": 5}'
    (place / "BAD" / "stages_s.jsonl").write_text(f"{good}\n{row}\n")
    code, result = run(args)
    assert code != ExitCode.BUG, result.exception


@pytest.mark.parametrize("suffix", ["jsonl.zst", "jsonl"])
@pytest.mark.parametrize("args", [["simulate", "SIM", "--data"], ["evaluate", "--stages"]])
def test_a_trace_that_cannot_be_read_is_named(args: list[str], suffix: str, place: Path) -> None:
    pytest.importorskip("lightgbm")
    (place / "BAD").mkdir()
    (place / "BAD" / f"stages_s.{suffix}").write_bytes(b"\x28\xb5\x2f\xfdbroken\xff\n")
    code, result = run([*args, "BAD"])
    assert code == ExitCode.USAGE, result.exception
    assert f"stages_s.{suffix}" in str(result.exception)


@pytest.mark.parametrize(
    "args",
    [
        ["train", "--stages", "TRACES", "--out", "OUT/m", "--state", "sqlite:///x"],
        ["train", "--from-history", "--routing", "TRACES"],
        ["train", "--from-history", "--exclude", "s"],
        ["train", "--from-history", "--licensed-only"],
        ["train", "--stages", "TRACES", "--out", "OUT/m", "--encoder", "bert"],
        ["evaluate", "--stages", "TRACES", "--ablation", "no_tools"],
        ["simulate", "SIM", "--seed", "-1"],
        ["simulate", "SIM", "--ordering", "fcsf"],
        ["simulate", "SIM", "--ordering", ""],
        ["experiments", "run", "slo_swep", "--out", "OUT"],
        ["experiments", "run", "overcommit", "--jobs", "-5", "--out", "OUT"],
        ["predict", "x", "--tools", "-1"],
        ["explain", ""],
        ["job", "show", " "],
        ["job", "cancel", ""],
        ["models", "wake", ""],
    ],
    ids=" ".join,
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(args: list[str], place: Path) -> None:
    pytest.importorskip("lightgbm")
    code, result = run(args)
    assert code == ExitCode.USAGE, result.exception
    assert os.listdir(place / "OUT") == []
