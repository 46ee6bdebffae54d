"""Functions that the tests call as tools."""

from __future__ import annotations

import threading
import time
from os import getcwd as borrowed  # noqa: F401  (a wildcard must not reach it)

ENTERED = threading.Event()
RELEASE = threading.Event()


def where(idempotency_key: str) -> str:
    """The key and the kind of thread."""
    return f"{idempotency_key} {threading.current_thread().daemon}"


async def later(value: int) -> dict[str, int]:
    """Asynchronous."""
    return {"value": value}


def boom() -> None:
    """Fails."""
    raise RuntimeError("the disk is on fire")


def leave() -> None:
    """Tries to end the program."""
    raise SystemExit(3)


def stuck() -> None:
    """Does not return before the test lets it."""
    ENTERED.set()
    RELEASE.wait(30)


def huge() -> str:
    """More than a model should read."""
    return "x" * 100_000


def odd() -> object:
    """Not JSON."""
    return {"when": time.struct_time((2024, 1, 1, 0, 0, 0, 0, 1, 0)), "what": {1, 2}}
