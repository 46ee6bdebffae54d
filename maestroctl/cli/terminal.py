"""The one object that owns the terminal: results on standard output, everything else on error."""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
import traceback
from contextlib import AbstractContextManager
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from maestroctl.cli.exit_codes import is_bug
from maestroctl.errors import MaestroError

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 160
"""Columns of a table that goes into a pipe: wide enough that a row stays on one line."""
_BLANKS = re.compile(r"[ ]+$", re.MULTILINE)


def prepare_streams() -> None:
    """Standard streams that can be used, whatever the caller of this process left of them.

    One that is closed reads and writes nothing, and its number is not given to the next file that
    is opened. What an encoding has no sign for is shown as a question mark.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(nothing, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class Terminal:
    """Two consoles and how much to say. Rich is imported when something is first printed.

    Attributes:
        debug: show tracebacks.
        verbose: show details.
    """

    def __init__(self) -> None:
        self.debug = False
        self.verbose = False

    @cached_property
    def out(self) -> Console:
        """Results; what a pipe reads."""
        return _console(stderr=False)

    @cached_property
    def err(self) -> Console:
        """Progress, notices, errors."""
        return _console(stderr=True)

    def json(self, value: Any) -> None:
        """One JSON document on standard output, nothing else; what is no number is null."""
        escaped = not (sys.stdout.encoding or "").lower().startswith("utf")
        try:
            text = json.dumps(value, ensure_ascii=escaped, indent=2, allow_nan=False)
        except ValueError:
            text = json.dumps(_finite(value), ensure_ascii=escaped, indent=2)
        self.line(text)

    def line(self, text: str) -> None:
        """A result as it is: no markup, no folding."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def notice(self, text: str) -> None:
        """One line for the person who watches."""
        from rich.text import Text

        self.err.print(Text(text, style="dim"))

    def detail(self, text: str) -> None:
        """A line that only ``-v`` shows."""
        if self.verbose:
            self.notice(text)

    def working(self, text: str) -> AbstractContextManager[Any]:
        """A spinner while something takes longer than a moment; nothing in a pipe."""
        return self.err.status(text)

    def error(self, exc: BaseException) -> None:
        """One readable paragraph: what was being done, what was found, what to try."""
        from rich.text import Text

        if self.debug:
            self.err.print(Text("".join(traceback.format_exception(exc)).rstrip(), style="dim"))
        for problem in getattr(exc, "errors", None) or [exc]:
            self._paragraph(problem)

    def _paragraph(self, exc: BaseException) -> None:
        from rich.text import Text

        text = Text("Error: ", style="bold red")
        text.append(_sentence(exc), style="default not bold")
        self.err.print(text)
        hint = exc.hint if isinstance(exc, MaestroError) else None
        if hint:
            self.err.print(Text(f"  {hint}"))
        if is_bug(exc) and not isinstance(exc, MaestroError) and not self.debug:
            self.err.print(Text("  This is a bug of maestroctl; --debug shows where."))


def _finite(value: Any) -> Any:
    """JSON has no word for NaN and the infinities."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sentence(exc: BaseException) -> str:
    if isinstance(exc, MaestroError):
        return str(exc)
    if isinstance(exc, OSError) and not is_bug(exc):
        return f"{exc.strerror}: {exc.filename}" if exc.filename else str(exc.strerror)
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _PIPE_WIDTH
    # Names, reasons and outputs are other people's text: brackets in them are no markup.
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    if stream.isatty():
        return Console(stderr=stderr, **plain)
    return Console(file=cast("IO[str]", _Trimmed(stderr=stderr)), width=width, **plain)


class _Trimmed(io.TextIOBase):
    """A pipe in which lines have no blanks at their ends: tables pad every cell.

    Rich writes whole lines at a time. The stream is looked up for each, as `print` does.
    """

    def __init__(self, *, stderr: bool) -> None:
        self._stderr = stderr

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._stderr else sys.stdout

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the pipe; Rich draws lines that it can hold."""
        return self._stream.encoding

    def fileno(self) -> int:
        """Of the pipe."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Everything but blanks before a line's end."""
        self._stream.write(_BLANKS.sub("", text))
        return len(text)

    def flush(self) -> None:
        """The pipe itself."""
        self._stream.flush()
