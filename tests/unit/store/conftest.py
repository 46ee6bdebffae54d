"""A fresh state per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from maestroctl.store.database import Store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state/state.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened
