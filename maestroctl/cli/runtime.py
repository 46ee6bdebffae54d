"""What every command needs and that costs nothing to import: the event loop, text arguments.

``maestroctl --help`` must be quick, so command files import only this, Typer and their own words;
HTTP, tables and configuration are imported by the command that runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from maestroctl.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


def not_empty(value: str) -> str:
    """A name from the shell; an unset variable there gives an empty one, which is no name."""
    if not value.strip():
        raise typer.BadParameter("it is empty")
    return value


JobArgument = Annotated[
    str,
    typer.Argument(help="Id of a job, as `submit` and `jobs` print it.", callback=not_empty),
]
ModelArgument = Annotated[str, typer.Argument(help="Name of a model.", callback=not_empty)]
UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Coordinator, if not the default.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came; handled like Ctrl-C, so that the same things are put away."""


def run_async(work: Coroutine[Any, Any, T], *, on_second: Callable[[], None] | None = None) -> T:
    """Run a command's coroutine on the same kind of loop that the servers use.

    The first Ctrl-C, SIGTERM or SIGHUP cancels it, so that it can put things away. A second Ctrl-C
    ends the process at once.

    Args:
        on_second: called at each further Ctrl-C in place of ending the process; what it does has
            to make the putting away quick.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    import asyncio

    import uvloop

    signals = _Signals(on_second)

    async def main() -> T:
        task = asyncio.ensure_future(work)
        signals.listen(task)
        return await task

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    except asyncio.CancelledError:
        if signals.first is None:
            raise
        raise KeyboardInterrupt if signals.first is signal.SIGINT else Terminated from None


class _Signals:
    """Turns signals into a cancellation, once.

    Attributes:
        first: the signal that came first.
    """

    def __init__(self, on_second: Callable[[], None] | None) -> None:
        self.first: signal.Signals | None = None
        self._on_second = on_second

    def listen(self, task: asyncio.Future[Any]) -> None:
        loop = task.get_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Only the main thread can; a test may run a command elsewhere.
            with contextlib.suppress(RuntimeError, ValueError):
                loop.add_signal_handler(number, self._take, number, task, loop)

    def _take(
        self, number: signal.Signals, task: asyncio.Future[Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        if self.first is None:
            self.first = number
            task.cancel()
            if self._on_second is None:
                loop.remove_signal_handler(signal.SIGINT)
                signal.signal(signal.SIGINT, signal.SIG_DFL)
        elif self._on_second is not None and number is signal.SIGINT:
            self._on_second()


def read_text_argument(value: str) -> str:
    """``-`` and ``@FILE`` stand for standard input and a file; anything else is the text.

    Raises:
        ConfigError: the file cannot be read.
    """
    if value == "-":
        return _decode(sys.stdin.buffer.read(), "standard input")
    if value.startswith("@"):
        file = value[1:]
        try:
            return _decode(Path(file).read_bytes(), file)
        except OSError as exc:
            raise ConfigError(f"cannot read {file}: {exc.strerror}") from exc
    # What the shell hands over may be no text either; Python keeps it as half surrogate pairs.
    return _decode(os.fsencode(value), "the text given")


def make_output_folder(folder: Path) -> None:
    """See that results can be written, before hours go into making them.

    Raises:
        ConfigError: they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as exc:
        raise ConfigError(f"cannot write to the folder {folder}: {exc.strerror}") from exc


def check_output_file(path: Path) -> None:
    """The same for one file, whose folder is made.

    Raises:
        ConfigError: it cannot be written.
    """
    make_output_folder(path.parent)
    if path.is_dir():
        raise ConfigError(f"cannot write the file {path}: it is a folder")


def _decode(raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"cannot read {what}: it is not UTF-8 text") from exc
