"""kvcached's limit file, played by a file of the same layout."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from maestroctl.errors import EngineError
from maestroctl.live.engine import kvcached
from maestroctl.live.engine.kvcached import KvLimit


def _file(folder: Path, total: int, used: int, prealloc: int) -> Path:
    path = folder / "maestroctl-x"
    path.write_bytes(struct.pack("=qqq", total, used, prealloc))
    return path


def test_limit_is_read(tmp_path: Path) -> None:
    _file(tmp_path, 100, 40, 10)
    assert kvcached.read_kv_limit("maestroctl-x", folder=tmp_path) == KvLimit(100, 40, 10)
    assert kvcached.read_kv_limit("absent", folder=tmp_path) is None


def test_setting_the_limit_leaves_the_engines_own_figures(tmp_path: Path) -> None:
    path = _file(tmp_path, 100, 40, 10)
    now = kvcached.write_kv_limit("maestroctl-x", 20, folder=tmp_path)
    assert now == KvLimit(20, 40, 10)  # below what is used: shrinks as requests end
    assert path.read_bytes() == struct.pack("=qqq", 20, 40, 10)


def test_missing_or_short_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="does not exist"):
        kvcached.write_kv_limit("absent", 20, folder=tmp_path)
    (tmp_path / "short").write_bytes(b"123")
    with pytest.raises(EngineError, match="not 24"):
        kvcached.write_kv_limit("short", 20, folder=tmp_path)
    with pytest.raises(ValueError, match="positive"):
        kvcached.write_kv_limit("absent", 0, folder=tmp_path)


def test_name_survives_kvcacheds_own_sanitising() -> None:
    name = kvcached.make_ipc_name("a1" * 40)
    assert len(name) <= 64
    assert all(c.isalnum() or c in "_-" for c in name)
    environment = kvcached.kvcached_environment(name)
    assert environment["KVCACHED_IPC_NAME"] == name
