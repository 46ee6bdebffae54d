"""Shows boards while they change: a table that redraws itself, or plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from maestroctl.cli.board import JobBoard, StepRow
from maestroctl.cli.render import seconds_text, status_text, table

_REDRAWS_PER_S = 6
_LEAST_ROWS = 4


class View(Protocol):
    """Something that is told lines and redraws what it was made with."""

    def line(self, text: str) -> None:
        """Something happened that is worth a line."""
        ...

    def notice(self, text: str) -> None:
        """Something a person must see, in either form."""
        ...

    def __enter__(self) -> View: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class PlainView:
    """Lines with the seconds since the start; for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()

    def line(self, text: str) -> None:
        """Print it."""
        passed_s = time.monotonic() - self._started_s
        self._console.print(f"{passed_s:6.1f} s  {text}", markup=False, soft_wrap=True)

    notice = line

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class LiveView:
    """Redraws `draw()` in place, and is gone at the end.

    Args:
        draw: gives what to show now, at most `height` lines of it.
    """

    def __init__(self, console: Console, draw: Callable[[int], RenderableType]) -> None:
        self._console = console
        self._draw = draw
        self._live = Live(
            console=console,
            refresh_per_second=_REDRAWS_PER_S,
            transient=True,
            get_renderable=self._render,
        )

    def line(self, text: str) -> None:
        """The table says it already."""

    def notice(self, text: str) -> None:
        """Print it above the table."""
        self._console.print(text, markup=False)

    def _render(self) -> RenderableType:
        return self._draw(max(self._console.size.height - 2, 6))

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()


def make_view(console: Console, draw: Callable[[int], RenderableType]) -> View:
    """A live view on a terminal, plain lines elsewhere."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, draw)
    return PlainView(console)


def draw_board(board: JobBoard, height: int) -> RenderableType:
    """The newest rows of a job that fit, and the end of the newest answer."""
    rows = list(board.rows.values())
    shown, hidden = pick_rows(board, max(height - 5, _LEAST_ROWS))
    done, known = board.counts()
    head = Text(f"{done} of {known} steps done")
    if hidden:
        head.append(f", {hidden} finished ones not shown", style="dim")
    parts: list[RenderableType] = [head]
    if rows:
        parts.append(board_table(board, shown))
        newest = next((row for row in reversed(shown) if row.text and not row.is_over), None)
        if newest is not None:
            tail = " ".join(newest.text.split())[-120:]
            parts.append(Text(f"{newest.label}: …{tail}", style="dim", no_wrap=True, end=""))
    else:
        parts.append(Text("waiting for the first step", style="dim"))
    return Group(*parts)


def pick_rows(board: JobBoard, limit: int) -> tuple[list[StepRow], int]:
    """Rows to show when not all fit: those that run first, then the newest finished ones."""
    rows = list(board.rows.values())
    running = [row for row in rows if not row.is_over][:limit]
    over = [row for row in rows if row.is_over]
    kept = over[len(over) - (limit - len(running)) :] if limit > len(running) else []
    if len(running) + len(over) <= limit:
        kept = over
    shown = sorted([*running, *kept], key=lambda row: row.num)
    return shown, len(rows) - len(shown)


def board_table(board: JobBoard, rows: list[StepRow]) -> Table:
    """Steps with what each does now."""
    made = table(
        "STEP", "STATE", "MODEL", ("FIRST", "right"), ("TOKENS", "right"), ("TIME", "right")
    )
    for row in rows:
        state = status_text(board.state_of(row))
        if row.note and not row.is_over:
            state.append(f" {row.note[:24]}", style="dim")
        end_s = row.ended_s if row.ended_s is not None else board.now_s()
        made.add_row(
            row.label,
            state,
            row.model or "–",
            seconds_text(row.ttft_s),
            str(row.tokens) if row.tokens else "–",
            seconds_text(end_s - row.started_s),
        )
    return made
