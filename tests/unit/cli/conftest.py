"""Commands in this process share one terminal; each test gets its consoles anew."""

from __future__ import annotations

import pytest

from maestroctl.cli.context import terminal


@pytest.fixture(autouse=True)
def _consoles_of_its_own() -> None:
    """A console keeps the width that it was made with."""
    for name in ("out", "err"):
        terminal.__dict__.pop(name, None)
