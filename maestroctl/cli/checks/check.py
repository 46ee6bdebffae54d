"""One line of ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How good it is."""

    OK = "ok"
    WARN = "warn"
    """It works without, with something left out."""
    MISSING = "missing"
    """Needed, and not there."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was found.

    Attributes:
        area: heading it stands under.
        name: what was looked at.
        found: in one line.
        fix: command, or what to do; empty when there is nothing to do.
    """

    area: str
    name: str
    level: Level
    found: str
    fix: str = ""
