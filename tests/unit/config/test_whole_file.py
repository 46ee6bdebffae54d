"""Files that are written as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from maestroctl.config.whole_file import write_whole


def test_text_and_bytes_take_the_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_whole(path, "größer\n")
    assert path.read_text(encoding="utf-8") == "größer\n"
    write_whole(path, b"\0")
    assert path.read_bytes() == b"\0"
    assert os.listdir(path.parent) == ["file"]


def test_what_was_there_stays_when_the_new_one_cannot_be_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")

    def fail(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no room"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]
