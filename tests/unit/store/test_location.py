"""State URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from maestroctl.errors import StoreError
from maestroctl.store.location import parse_state_url


@pytest.mark.parametrize(
    ("url", "path", "synchronous"),
    [
        ("sqlite:////var/lib/x.db", "/var/lib/x.db", "NORMAL"),
        ("sqlite:////var/lib/x.db?synchronous=full", "/var/lib/x.db", "FULL"),
        ("sqlite:///~/a b/ö.db", "HOME/a b/ö.db", "NORMAL"),
        ("sqlite:///relative.db", "CWD/relative.db", "NORMAL"),
        ("", "HOME/data/maestroctl/state.db", "NORMAL"),
    ],
)
def test_url_names_a_file(
    url: str, path: str, synchronous: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    location = parse_state_url(url)
    expected = path.replace("HOME", str(tmp_path)).replace("CWD", str(tmp_path))
    assert (str(location.path), location.synchronous) == (expected, synchronous)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("state.db", "not a URL"),
        ("postgresql://host/db", "postgresql"),
        ("sqlite://", "name a file"),
        ("sqlite:///:memory:", "name a file"),
        ("sqlite:////x.db?synchronous=maybe", "synchronous=MAYBE"),
        ("sqlite:////x.db?cache=shared", "cache"),
    ],
)
def test_unusable_url_is_refused_with_the_reason(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        parse_state_url(url)
    assert caught.value.hint


def test_password_of_another_database_is_not_repeated() -> None:
    with pytest.raises(StoreError) as caught:
        parse_state_url("postgresql://user:hunter2@host/db")
    assert "hunter2" not in str(caught.value)
