"""Every event comes back from a log as exactly the value it was."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maestroctl.domain.ids import StageId, TimerId
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    NodeEvent,
    StageProgressed,
    StageRefused,
    TimerFired,
    ToolsRan,
)
from maestroctl.telemetry.event_codec import EVENT_TYPES, Event, decode_event, encode_event
from tests.unit.telemetry.event_strategies import FLOATS, instances


def test_every_event_of_both_cores_is_known() -> None:
    assert set(EVENT_TYPES.values()) == set((CoordinatorEvent | NodeEvent).__args__)


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), now_s=st.floats(allow_nan=False, allow_infinity=False))
def test_an_event_round_trips_exactly(kind: type[Event], data: st.DataObject, now_s: float) -> None:
    event = data.draw(instances(kind))
    line = encode_event(event, now_s)
    assert b"\n" not in line
    read_s, read = decode_event(line)
    assert (read_s, type(read)) == (now_s, type(event))
    assert read == event
    assert repr(read) == repr(event)  # 1 and 1.0, 0.0 and -0.0, list and tuple


@given(seconds=FLOATS, hint=FLOATS | st.none())
def test_infinity_and_none_are_told_apart(seconds: float, hint: float | None) -> None:
    refused = StageRefused(StageId("s"), 1, "why", {}, retry_in_s=hint)
    assert decode_event(encode_event(refused, 0.0))[1] == refused
    event = decode_event(encode_event(ToolsRan("j", "s", seconds), 0.0))[1]  # type: ignore[arg-type]
    assert isinstance(event, ToolsRan)
    assert event.seconds == seconds


def test_not_a_number_survives() -> None:
    event = decode_event(encode_event(ToolsRan("j", "s", math.nan), 0.0))[1]  # type: ignore[arg-type]
    assert isinstance(event, ToolsRan)
    assert math.isnan(event.seconds)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "truncated"),
        (b'[1.0, "TimerFired"]', "length"),
        (b'[1.0, "Unheard", {}]', "unknown event 'Unheard'"),
        (b'[1.0, "TimerFired", {}]', "timer_id"),
        (b'[1.0, "StageProgressed", {"stage_id": "s", "attempt": 1.5, "output_tokens": 1}]', "int"),
    ],
)
def test_a_line_that_is_no_event_is_refused(line: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_event(line)


def test_a_line_is_one_readable_array() -> None:
    line = encode_event(TimerFired(TimerId("wait:s1")), 1.5)
    assert line == b'[1.5,"TimerFired",{"timer_id":"wait:s1"}]'
    progress = StageProgressed(StageId("s"), 2, 30)
    assert encode_event(progress, 0.25).startswith(b'[0.25,"StageProgressed",{"stage_id":"s"')
