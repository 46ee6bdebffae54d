"""The one object that owns the terminal: results on standard output, everything else on error."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from maestroctl.errors import MaestroError


@dataclass(slots=True)
class Terminal:
    """Two consoles and how much to say.

    Attributes:
        out: results; what a pipe reads.
        err: progress, notices, errors.
        debug: show tracebacks.
    """

    out: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=False))
    err: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    debug: bool = False
    verbose: bool = False

    def json(self, value: Any) -> None:
        """One JSON document on standard output, nothing else."""
        sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
        sys.stdout.flush()

    def notice(self, text: str) -> None:
        """One line for the person who watches."""
        self.err.print(Text(text, style="dim"))

    def detail(self, text: str) -> None:
        """A line that only ``-v`` shows."""
        if self.verbose:
            self.notice(text)

    def error(self, exc: BaseException) -> None:
        """One readable paragraph: what was being done, what was found, what to try."""
        if self.debug:
            self.err.print(Text("".join(traceback.format_exception(exc)).rstrip(), style="dim"))
        for problem in getattr(exc, "errors", None) or [exc]:
            self._paragraph(problem)

    def _paragraph(self, exc: BaseException) -> None:
        text = Text("Error: ", style="bold red")
        text.append(str(exc) or type(exc).__name__, style="default not bold")
        self.err.print(text)
        hint = exc.hint if isinstance(exc, MaestroError) else None
        if hint:
            self.err.print(Text(f"  {hint}"))
        if not isinstance(exc, MaestroError) and not self.debug:
            self.err.print(Text("  This is a bug of maestroctl; --debug shows where."))
