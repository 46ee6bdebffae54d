"""What every command needs and that costs nothing to import: the event loop, text arguments.

``maestroctl --help`` must be quick, so command files import only this, Typer and their own words;
HTTP, tables and configuration are imported by the command that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from maestroctl.errors import ConfigError

T = TypeVar("T")

UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Coordinator, if not the default.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came; handled like Ctrl-C, so that the same things are put away."""


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine on the same kind of loop that the servers use.

    The first Ctrl-C, SIGTERM or SIGHUP cancels it, so that it can put things away; a second
    Ctrl-C ends it at once.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    import uvloop

    terminated = False

    async def main() -> T:
        task = asyncio.ensure_future(work)

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Only the main thread can; tests may run a command elsewhere.
            with contextlib.suppress(RuntimeError, ValueError):
                loop.add_signal_handler(number, terminate)
        return await task

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    except asyncio.CancelledError:
        if terminated:
            raise Terminated from None
        raise


def read_text_argument(value: str) -> str:
    """``-`` and ``@FILE`` stand for standard input and a file; anything else is the text.

    Raises:
        ConfigError: the file cannot be read.
    """
    if value == "-":
        return sys.stdin.read()
    if value.startswith("@"):
        try:
            return Path(value[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"cannot read {value[1:]}: {exc}") from exc
    return value
