"""Where things are kept: one rule for configuration, engines and the installer."""

from __future__ import annotations

from pathlib import Path

import pytest

from maestroctl.config.home import home_dir
from maestroctl.live.engine_envs import data_home


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"MAESTROCTL_HOME": "/m", "XDG_DATA_HOME": "/x", "HOME": "/h"}, "/m"),
        ({"XDG_DATA_HOME": "/x", "HOME": "/h"}, "/x/maestroctl"),
        ({"XDG_DATA_HOME": "", "HOME": "/h"}, "/h/.local/share/maestroctl"),
        ({"HOME": "/h"}, "/h/.local/share/maestroctl"),
    ],
    ids=["own", "shared", "empty", "user"],
)
def test_state_and_engines_are_kept_in_one_place(
    environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAESTROCTL_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert home_dir(environ) == Path(expected)
    assert data_home() == Path(expected)
