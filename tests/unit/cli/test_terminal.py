"""Errors as people see them."""

from __future__ import annotations

import errno
import json

import pytest

from maestroctl.cli.exit_codes import ExitCode, exit_code_of
from maestroctl.cli.terminal import Terminal
from maestroctl.errors import ConfigError, ConfigErrors, MaestroError


def test_error_has_a_sentence_and_what_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().error(MaestroError("the cat sat", hint="feed it"))
    captured = capsys.readouterr()
    assert captured.err == "Error: the cat sat\n  feed it\n"
    assert captured.out == ""


def test_every_mistake_of_a_file_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    errors = [ConfigError("one", file="f.toml", line=1), ConfigError("two", file="f.toml", line=2)]
    Terminal().error(ConfigErrors(errors))
    assert capsys.readouterr().err.splitlines() == ["Error: f.toml:1: one", "Error: f.toml:2: two"]


def test_markup_in_a_message_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().error(MaestroError("found [bold]x[/nonsense]"))
    assert "[bold]x[/nonsense]" in capsys.readouterr().err


def test_unforeseen_error_says_that_it_is_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().error(ValueError("odd"))
    captured = capsys.readouterr().err
    assert "ValueError: odd" in captured
    assert "--debug" in captured


def test_json_is_one_document_with_its_letters_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Terminal().json({"name": "模型"})
    assert '"模型"' in capsys.readouterr().out


def test_rows_of_a_table_in_a_pipe_stay_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from maestroctl.cli.render import table

    monkeypatch.delenv("COLUMNS", raising=False)
    made = table("A", "B")
    made.add_row("x" * 60, "y" * 60)
    Terminal().out.print(made)
    assert f"{'x' * 60}   {'y' * 60}" in capsys.readouterr().out


def test_details_need_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    terminal.detail("quiet")
    terminal.verbose = True
    terminal.detail("loud")
    assert capsys.readouterr().err == "loud\n"


def test_brackets_in_a_cell_are_text_and_lines_have_no_blanks_at_their_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from maestroctl.cli.render import table

    made = table("ROLE", "REASON")
    made.add_row("[/x]", "[predictor] enabled is false")
    made.add_row("coder", ":smile:")
    Terminal().out.print(made)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["[/x]    [predictor] enabled is false", "coder   :smile:"]
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_title_wider_than_its_table_stays_on_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from maestroctl.cli.render import table, titled

    made = table("A")
    made.add_row("x")
    Terminal().out.print(titled("what this table of one column shows", made))
    assert "\nwhat this table of one column shows\nA\n" in capsys.readouterr().out


def test_what_is_no_number_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    nan, inf = float("nan"), float("inf")
    Terminal().json({"a": [nan, 1.5, (inf, -inf)], "b": {"c": nan}})
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert document == {"a": [None, 1.5, [None, None]], "b": {"c": None}}


@pytest.mark.parametrize("kind", [PermissionError, IsADirectoryError, FileNotFoundError, OSError])
def test_a_file_that_is_not_to_be_had_is_named_and_no_bug(
    kind: type[OSError], capsys: pytest.CaptureFixture[str]
) -> None:
    error = kind(errno.EIO, "Some reason", "/some/file")
    Terminal().error(error)
    assert capsys.readouterr().err == "Error: Some reason: /some/file\n"
    assert exit_code_of(error) is ExitCode.FAILED
