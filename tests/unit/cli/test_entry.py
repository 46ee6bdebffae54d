"""The command before its command line is loaded."""

from __future__ import annotations

import builtins
import signal
import subprocess
import sys
from typing import Any

import pytest

from maestroctl import __main__ as entry


def test_ctrl_c_while_the_command_line_loads_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def interrupted(name: str, *args: Any) -> Any:
        if name == "maestroctl.cli.main":
            raise KeyboardInterrupt
        return load(name, *args)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as caught:
        entry.run()
    assert caught.value.code == entry.INTERRUPTED


def test_ctrl_c_while_python_takes_itself_apart_is_quiet() -> None:
    code = "import atexit, os, signal; import maestroctl.__main__ as entry; "
    code += "atexit.register(os.kill, os.getpid(), signal.SIGINT); entry.run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGINT
    assert done.stdout.startswith("maestroctl")
    assert done.stderr == ""
