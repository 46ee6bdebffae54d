"""What is known of a job from its events."""

from __future__ import annotations

from typing import Any

from maestroctl.cli.board import JobBoard
from maestroctl.config.workflow import parse_workflow

WORKFLOW = parse_workflow(
    """
    [[step]]
    name = "plan"
    prompt = "{{ input }}"

    [[step]]
    name = "note"
    after = ["plan"]
    for_each = "{{ steps.plan.lines }}"
    prompt = "{{ item }}"
    """
)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def board() -> JobBoard:
    return JobBoard(Clock(), WORKFLOW)


def event(kind: str, step: str = "plan", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "job_id": "j", "step": step, "visit": 1, "item": 0, "round": 0, **fields}


def ledger(kind: str, stage_id: str) -> dict[str, Any]:
    """What the coordinator says of a stage: it knows no visit."""
    return {"type": kind, "job_id": "j", "stage_id": stage_id, "step": "plan", "role": "r"}


def test_step_goes_from_queued_over_waiting_and_running_to_finished() -> None:
    it = board()
    assert it.apply(event("step_started")) == "plan: started"
    it.apply(event("stage_started", stage_id="s1"))
    (row,) = it.rows.values()
    states = []
    for kind in ("stage_queued", "stage_dispatched", "stage_started"):
        it.apply(ledger(kind, "s1"))
        states.append(it.state_of(row))
    assert states == ["queued", "waiting", "running"]
    line = it.apply(event("stage_first_token", stage_id="s1", model="m", ttft_s=1.5))
    assert line == "plan: m answers after 1.5 s"
    it.apply(event("stage_text", stage_id="s1", text="hello"))
    it.apply(event("stage_ended", stage_id="s1", output_tokens=7))
    assert it.apply(event("step_finished", seconds=2.0)) == "plan: finished in 2.0 s, 7 tokens"
    assert (row.model, row.tokens, row.text, row.is_over) == ("m", 7, "hello", True)
    assert it.counts() == (1, 1)


def test_state_of_a_stage_that_was_said_before_the_step_is_kept() -> None:
    it = board()
    it.apply(ledger("stage_dispatched", "s1"))
    it.apply(event("stage_started", stage_id="s1"))
    (row,) = it.rows.values()
    assert it.state_of(row) == "waiting"


def test_items_and_visits_are_rows_of_their_own() -> None:
    it = board()
    it.apply(event("step_started", step="note", item=0))
    it.apply(event("step_started", step="note", item=1))
    it.apply(event("step_started", step="plan", visit=2))
    assert [row.label for row in it.rows.values()] == ["note [1]", "note [2]", "plan #2"]


def test_tools_are_named_while_they_run() -> None:
    it = board()
    assert it.apply(event("tool_called", text="search")) == "plan: calls search"
    (row,) = it.rows.values()
    assert (row.state, row.note) == ("tool", "search")
    it.apply(event("tool_returned", text="search"))
    assert row.note == ""


def test_tokens_of_every_round_add_up() -> None:
    it = board()
    it.apply(event("stage_ended", stage_id="a", output_tokens=3))
    it.apply(event("stage_ended", stage_id="b", output_tokens=4))
    assert it.apply(event("step_finished", seconds=1.0)) == "plan: finished in 1.0 s, 7 tokens"


def test_failure_and_retry_say_why() -> None:
    it = board()
    assert it.apply(event("stage_retried", text="full")) == "plan: tried again: full"
    assert it.apply(event("step_failed", text="broken")) == "plan: failed: broken"
    assert it.apply({"type": "job_finished", "status": "failed", "reason": "broken"}) is None
    assert (it.status, it.reason) == ("failed", "broken")


def test_lost_events_are_counted_and_unknown_ones_ignored() -> None:
    it = board()
    it.apply({"type": "events_lost", "count": 3})
    assert it.apply({"type": "something_new", "anything": 1}) is None
    assert it.lost == 3
    assert it.rows == {}


def test_event_in_the_middle_of_a_job_makes_its_row() -> None:
    it = board()
    it.apply(event("step_finished", step="note", item=2, seconds=1.0))
    assert [row.label for row in it.rows.values()] == ["note [3]"]
