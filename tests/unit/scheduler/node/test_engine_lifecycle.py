"""The transition table: complete, closed, drawn, and obeyed by the hot path."""

from pathlib import Path

import pytest

from maestroctl.domain.engine import EngineStatus
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.node.engine_lifecycle import ALLOWED, is_allowed, render_page
from maestroctl.testing.builders import engine_of, make_node_core

PAGE = Path(__file__).parents[4] / "docs" / "lifecycles" / "engine.md"
S = EngineStatus


def test_every_status_has_a_row_and_a_way_out():
    assert set(ALLOWED) == set(EngineStatus)
    assert all(ALLOWED[status] for status in EngineStatus)


def test_every_status_can_be_reached_from_stopped_and_leads_back():
    reached = {S.STOPPED}
    while more := {finish for start in reached for finish in ALLOWED[start]} - reached:
        reached |= more
    assert reached == set(EngineStatus)
    for status in EngineStatus:
        seen = {status}
        while more := {finish for start in seen for finish in ALLOWED[start]} - seen:
            seen |= more
        assert S.STOPPED in seen, status


def test_no_status_follows_itself():
    assert not [status for status in EngineStatus if is_allowed(status, status)]


def test_only_statuses_with_memory_booked_lead_to_awake():
    leads_to_idle = {start for start in EngineStatus if is_allowed(start, S.IDLE)}
    assert leads_to_idle == {S.STOPPED, S.STARTING, S.WAKING, S.RESUMING, S.ACTIVE, S.DRAINING}


def test_flip_of_the_hot_path_is_in_the_table():
    assert is_allowed(S.IDLE, S.ACTIVE)
    assert is_allowed(S.ACTIVE, S.IDLE)


def test_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == render_page(), "run python docs/lifecycles/draw.py"


@pytest.mark.parametrize("start", list(EngineStatus))
def test_forbidden_move_raises_with_story_and_changes_nothing(start):
    state = make_node_core()._state
    engine = state.by_model["a"]
    engine.status = start
    state.journal.note(0.0, engine.engine_id, None, "seen")
    for finish in EngineStatus:
        if not is_allowed(start, finish):
            with pytest.raises(InvariantViolation) as raised:
                state.move(engine, finish, "test")
            assert engine.status is start
            assert raised.value.story == (f"0.000 {engine_of('a')} -: seen",)
