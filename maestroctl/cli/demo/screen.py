"""What the demo shows while it runs: engines and both jobs, or lines in a pipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from maestroctl.cli.board import JobBoard
from maestroctl.cli.demo.engine_watch import EngineWatch, Transition
from maestroctl.cli.live_view import board_table, pick_rows
from maestroctl.cli.render import seconds_text, status_text, table

_HEAD_LINES = 2
_ENGINE_LINES = 6
_BOARD_LINES = 4
"""Lines of one board besides its rows."""


@dataclass(slots=True)
class DemoScreen:
    """Everything that is drawn.

    Args:
        now_s: any steady clock, seconds.
    """

    now_s: Callable[[], float]
    engines: EngineWatch
    started_s: float
    phase: str = "starting"
    url: str = ""
    boards: dict[str, tuple[str, JobBoard]] = field(default_factory=dict)
    """Title and board by job id; only those that are not over are drawn."""

    def draw(self, height: int) -> RenderableType:
        """At most `height` lines."""
        head = Text(f"{seconds_text(self.now_s() - self.started_s):>8}  ", style="bold")
        head.append(self.phase)
        parts: list[RenderableType] = [head, self._engines()]
        open_boards = [entry for entry in self.boards.values() if entry[1].status == "running"]
        room = height - _HEAD_LINES - _ENGINE_LINES
        for title, board in open_boards:
            limit = max(room // len(open_boards) - _BOARD_LINES, 2)
            parts += self._board(title, board, limit)
        return Group(*parts)

    def _engines(self) -> Table:
        made = table(
            "ENGINE", "STATE", ("FOR", "right"), ("RUNS", "right"), ("STARTS", "right"),
            ("WAKES", "right"), ("SLEEPS", "right"),
        )  # fmt: skip
        for view in self.engines.engines.values():
            made.add_row(
                view.model,
                status_text(view.status),
                seconds_text(self.now_s() - view.since_s) if view.since_s else "–",
                str(view.num_running),
                *(
                    str(view.counts.get(kind, 0))
                    for kind in (Transition.START, Transition.WAKE, Transition.SLEEP)
                ),
            )
        return made

    def _board(self, title: str, board: JobBoard, limit: int) -> list[RenderableType]:
        done, known = board.counts()
        head = Text(title, style="bold")
        head.append(f"  {done} of {known} steps done", style="default not bold")
        rows, hidden = pick_rows(board, limit)
        if hidden:
            head.append(f", {hidden} not shown", style="dim")
        return [head, board_table(board, rows)] if rows else [head]
