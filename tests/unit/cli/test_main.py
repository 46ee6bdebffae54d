"""The top of the command line: it answers at once, and errors are one paragraph."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from maestroctl import __version__
from maestroctl.cli.exit_codes import TABLE, ExitCode, exit_code_of
from maestroctl.errors import ConfigError, FleetError, InvariantViolation, MaestroError, StateLocked

COMMANDS = (
    *("demo", "init", "serve", "submit", "jobs", "job", "models"),
    *("ps", "doctor", "config", "node"),
    *("train", "evaluate", "predict", "predictor"),
    *("simulate", "experiments", "replay", "profile", "explain"),
)
HEAVY = (
    "aiohttp",
    "sqlalchemy",
    "jinja2",
    "jsonschema",
    "asyncssh",
    "uvloop",
    "psutil",
    "numpy",
    "lightgbm",
)


def maestroctl(
    *args: str, columns: int = 80, home: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "maestroctl", *args],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            **os.environ,
            "COLUMNS": str(columns),
            "NO_COLOR": "1",
            **({} if home is None else {"HOME": str(home)}),
        },
    )


def test_help_names_every_command_and_the_exit_codes() -> None:
    done = maestroctl("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert f" {name} " in done.stdout
    assert "Exit codes" in done.stdout


def test_help_takes_less_than_a_third_of_a_second_of_processor() -> None:
    # Wall time would measure who else uses the machine; the least of a few is our own.
    assert min(_processor_s("--help") for _ in range(3)) < 0.3


def _processor_s(*args: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    maestroctl(*args)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def test_command_files_import_nothing_heavy() -> None:
    code = f"import sys, maestroctl.cli.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_fits_the_terminal(name: str, columns: int) -> None:
    done = maestroctl(name, "--help", columns=columns)
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= columns


def test_paragraphs_of_help_fold_at_the_terminal_and_not_where_the_source_does() -> None:
    lines = maestroctl("submit", "--help").stdout.splitlines()
    texts = [line.strip() for line in lines]
    first = next(i for i, text in enumerate(texts) if text.startswith("Ctrl-C cancels"))
    assert len(texts[first]) > 60
    assert len(texts[first + 1]) > 60


@pytest.mark.parametrize("text", [None, "no log\n", "[]\n"], ids=["none", "words", "other json"])
def test_what_is_no_event_log_is_a_mistake_of_the_caller(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    if text is not None:
        path.write_text(text)
    done = maestroctl("replay", str(path))
    assert done.returncode == ExitCode.USAGE
    assert "reading the event log" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("args", [("config", "show"), ("config", "show", "--json")])
def test_full_disk_is_no_bug(args: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "maestroctl", *args]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == ExitCode.FAILED
    assert done.stderr.startswith("Error: No space left on device")
    assert "bug" not in done.stderr


def test_version() -> None:
    assert maestroctl("--version").stdout == f"maestroctl {__version__}\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["submti"], "Did you mean 'submit'"),
        (["submit"], "Missing argument"),
        (["jobs", "--limit", "0"], "limit"),
        (["jobs", "--status", "odd"], "odd"),
        (["submit", "x.toml", "--class", "urgent"], "urgent"),
    ],
    ids=str,
)
def test_wrong_words_are_exit_code_2_on_standard_error(args: Sequence[str], says: str) -> None:
    done = maestroctl(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr


def test_error_is_one_paragraph_and_a_traceback_only_with_debug() -> None:
    args = ("submit", "nowhere.toml", "--input", "x")
    done = maestroctl(*args)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: nowhere.toml: there is no such file")
    assert "maestroctl init" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in maestroctl("--debug", *args).stderr


def test_address_that_is_none_is_refused() -> None:
    done = maestroctl("ps", "--url", "localhost:8080")
    assert done.returncode == 2
    assert "http://" in done.stderr


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o default -F _maestroctl_completion maestroctl"),
        ("zsh", "#compdef maestroctl"),
        ("fish", "complete --command maestroctl --no-files"),
    ],
)
def test_completion_script_of_the_named_shell_is_shown_whatever_runs_us(
    shell: str, line: str
) -> None:
    done = maestroctl("--show-completion", shell)
    assert done.returncode == 0, done.stderr
    assert line in done.stdout
    assert "_MAESTROCTL_COMPLETE" in done.stdout


def test_completion_is_installed_for_the_named_shell(tmp_path: Path) -> None:
    done = maestroctl("--install-completion", "fish", home=tmp_path)
    assert done.returncode == 0, done.stderr
    (script,) = tmp_path.rglob("*.fish")
    assert "_MAESTROCTL_COMPLETE" in script.read_text()


def test_completion_of_an_unknown_shell_is_refused_with_the_known_ones() -> None:
    done = maestroctl("--show-completion", "tcsh")
    assert done.returncode == 2
    assert "fish" in done.stderr


def test_completion_offers_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "maestroctl"],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            **os.environ,
            "_MAESTROCTL_COMPLETE": "complete_bash",
            "COMP_WORDS": "maestroctl su",
            "COMP_CWORD": "1",
        },
    )
    assert "submit" in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), ExitCode.USAGE),
        (StateLocked("x"), ExitCode.BUSY),
        (FleetError("x"), ExitCode.UNREACHABLE),
        (MaestroError("x"), ExitCode.FAILED),
        (InvariantViolation("x"), ExitCode.BUG),
        (KeyError("x"), ExitCode.BUG),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_exit_codes(error: BaseException, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def test_port_in_use_is_busy_not_a_mistake() -> None:
    error = ConfigError("cannot listen")
    error.__cause__ = OSError(errno.EADDRINUSE, "Address already in use")
    assert exit_code_of(error) is ExitCode.BUSY


def test_first_match_of_the_table_is_the_nearest_class() -> None:
    seen: list[type[BaseException]] = []
    for kind, _ in TABLE:
        assert not any(issubclass(kind, earlier) for earlier in seen), kind
        seen.append(kind)
