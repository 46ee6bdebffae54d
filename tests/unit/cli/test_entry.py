"""The command before its command line is loaded."""

from __future__ import annotations

import builtins
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
