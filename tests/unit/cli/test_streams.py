"""Standard streams as a shell, a service manager or an old terminal may leave them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = '[[model]]\nname = "模型-ß"\nsource = "hf:a/b"\n'


def shell(line: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """`m` stands for the command."""
    line = line.replace("m ", f"{sys.executable} -m maestroctl ", 1)
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, timeout=60, env={**os.environ, **env}
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("m profile show >&-", 0),
        ("m profile show --json >&-", 0),
        ("m profile show >&- 2>&-", 0),
        ("m profile show none >&- 2>&-", 2),
        ("m submit nowhere.toml --input - <&-", 2),
        ("m config validate nowhere.toml <&- >&- 2>&-", 2),
    ],
)
def test_a_closed_stream_changes_no_exit_code(line: str, code: int) -> None:
    done = shell(line)
    assert done.returncode == code, done.stderr
    assert b"bug" not in done.stderr


def test_a_closed_stream_lends_its_number_to_no_file(tmp_path: Path) -> None:
    done = shell(f"m init {tmp_path}/new >&-")
    assert done.returncode == 0
    assert b"wrote" not in (tmp_path / "new" / "fleet.toml").read_bytes()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_no_encoding_is_a_bug_and_json_is_the_same_in_each(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(MODEL, encoding="utf-8")
    for command in ("m profile show", f"m config show {file}"):
        done = shell(command, PYTHONIOENCODING=encoding)
        assert done.returncode == 0, done.stderr
    done = shell(f"m config show {file} --json", PYTHONIOENCODING=encoding)
    values = {
        row["key"]: row["value"] for row in json.loads(done.stdout.decode(encoding))["values"]
    }
    assert json.loads(values["model[模型-ß].name"]) == "模型-ß"
