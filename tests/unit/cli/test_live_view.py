"""What a live view shows: as much as fits, plain lines in a pipe."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from maestroctl.cli.board import JobBoard
from maestroctl.cli.live_view import LiveView, PlainView, draw_board, make_view, pick_rows


def filled(num_over: int, num_running: int) -> JobBoard:
    board = JobBoard(lambda: 10.0)
    for index in range(num_over + num_running):
        event = {"job_id": "j", "step": f"step-{index}", "visit": 1, "item": 0}
        board.apply({"type": "step_started", **event})
        board.apply({"type": "stage_text", "text": "some words " * 30, **event})
        if index < num_over:
            board.apply({"type": "step_finished", "seconds": 1.0, **event})
    return board


@pytest.mark.parametrize("height", [8, 12, 24, 60])
@pytest.mark.parametrize(("over", "running"), [(0, 0), (3, 1), (40, 2), (0, 50)])
def test_board_fits_the_screen(height: int, over: int, running: int) -> None:
    out = StringIO()
    Console(file=out, width=80, height=height).print(draw_board(filled(over, running), height))
    lines = out.getvalue().splitlines()
    assert len(lines) <= max(height, 10)
    assert max(map(len, lines)) <= 80


def test_running_rows_come_before_finished_ones() -> None:
    shown, hidden = pick_rows(filled(10, 2), 4)
    assert [row.step for row in shown] == ["step-8", "step-9", "step-10", "step-11"]
    assert hidden == 8


def test_all_rows_are_shown_when_they_fit() -> None:
    shown, hidden = pick_rows(filled(2, 2), 4)
    assert (len(shown), hidden) == (4, 0)


def test_more_running_rows_than_fit_are_cut() -> None:
    shown, hidden = pick_rows(filled(3, 9), 4)
    assert [row.step for row in shown] == ["step-3", "step-4", "step-5", "step-6"]
    assert hidden == 8


def test_pipe_gets_lines() -> None:
    out = StringIO()
    with make_view(Console(file=out, width=80), lambda _: "never drawn") as view:
        assert isinstance(view, PlainView)
        view.line("[plan] " + "x" * 100)
    assert out.getvalue().splitlines() == [f"   0.0 s  [plan] {'x' * 100}"]


def test_terminal_gets_a_table_that_is_gone_at_the_end() -> None:
    out = StringIO()
    console = Console(file=out, width=80, height=24, force_terminal=True, highlight=False)
    with make_view(console, lambda height: f"drawn in {height}") as view:
        assert isinstance(view, LiveView)
        view.line("not shown")
        view.notice("shown above")
    text = out.getvalue()
    assert "drawn in 22" in text
    assert "shown above" in text
    assert "not shown" not in text


def test_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=StringIO(), force_terminal=True)
    assert isinstance(make_view(console, lambda _: ""), PlainView)
