"""Identity files: names, round trips, damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from maestroctl.live.engine import identity as identities
from maestroctl.live.engine.identity import EngineIdentity


def _identity(engine: str = "m@n", token: str = "t1") -> EngineIdentity:
    return EngineIdentity(token, engine, "m", 1, "h", pid=7, start_ticks=8, devices=("cpu",))


def test_identity_survives_the_file(tmp_path: Path) -> None:
    identities.save_identity(tmp_path, _identity())
    assert identities.load_identities(tmp_path) == [_identity()]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": 1}', '{"unknown": 1}'])
def test_damaged_file_is_no_identity(tmp_path: Path, text: str) -> None:
    path = identities.identity_path(tmp_path, "x")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert identities.load_identities(tmp_path) == []


def test_names_that_look_alike_get_different_files() -> None:
    names = ["a/b", "a_b", "a b", "模型", "模形", "..", ".", "a:b", "a@b", "x" * 300]
    files = [identities.safe_name(name) for name in names]
    assert len(set(files)) == len(names)
    for file in files[:-1]:
        assert "/" not in file
        assert not file.startswith(".")


def test_identity_file_is_private(tmp_path: Path) -> None:
    path = identities.save_identity(tmp_path, _identity())
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("folder", ["run", "maestroctl-0-0123456789abcdef"])
def test_forgetting_leaves_no_file_of_the_engine(tmp_path: Path, folder: str) -> None:
    socket = tmp_path / folder / "e.sock"
    identities.ipc_dir(socket).mkdir(parents=True)
    socket.touch()
    (identities.ipc_dir(socket) / "between-its-processes").touch()
    identity = replace(_identity(), socket_path=str(socket))
    identities.save_identity(tmp_path, identity)
    identities.forget(tmp_path, identity)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
    assert not socket.parent.exists() or list(socket.parent.iterdir()) == []
    assert socket.parent.exists() == (folder == "run"), "a temporary folder is its own"


def test_removal_spares_the_identity_of_a_later_start(tmp_path: Path) -> None:
    identities.save_identity(tmp_path, replace(_identity(), token="t2", generation=2))
    identities.forget(tmp_path, _identity(token="t1"))
    assert len(identities.load_identities(tmp_path)) == 1
    identities.forget(tmp_path, _identity(token="t2"))
    assert identities.load_identities(tmp_path) == []
