"""Every event comes back from a log as exactly the value it was."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maestroctl.domain.ids import StageId, TimerId
from maestroctl.scheduler.effects import CoordinatorEffect, NodeEffect, SetTimer
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    NodeEvent,
    StageProgressed,
    StageRefused,
    TimerFired,
    ToolsRan,
)
from maestroctl.telemetry.event_codec import (
    EFFECT_TYPES,
    EVENT_TYPES,
    Effect,
    Event,
    decode_entry,
    encode_entry,
)
from tests.unit.telemetry.event_strategies import FLOATS, instances


def test_every_event_of_both_cores_is_known() -> None:
    assert set(EVENT_TYPES.values()) == set((CoordinatorEvent | NodeEvent).__args__)
    assert set(EFFECT_TYPES.values()) == set((CoordinatorEffect | NodeEffect).__args__)


@pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), now_s=st.floats(allow_nan=False, allow_infinity=False))
def test_an_event_round_trips_exactly(kind: type[Event], data: st.DataObject, now_s: float) -> None:
    event = data.draw(instances(kind))
    line = encode_entry(event, now_s)
    assert b"\n" not in line
    entry = decode_entry(line)
    assert (entry.now_s, type(entry.event)) == (now_s, type(event))
    assert entry.event == event
    assert repr(entry.event) == repr(event)  # 1 and 1.0, 0.0 and -0.0, list and tuple


@pytest.mark.parametrize("kind", EFFECT_TYPES.values(), ids=EFFECT_TYPES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_effect_round_trips_exactly(kind: type[Effect], data: st.DataObject) -> None:
    effects = (data.draw(instances(kind)), SetTimer(TimerId("t"), 1.0))
    entry = decode_entry(encode_entry(TimerFired(TimerId("t")), 0.5, effects))
    assert entry.effects == effects
    assert repr(entry.effects) == repr(effects)


@given(seconds=FLOATS, hint=FLOATS | st.none())
def test_infinity_and_none_are_told_apart(seconds: float, hint: float | None) -> None:
    refused = StageRefused(StageId("s"), 1, "why", {}, retry_in_s=hint)
    assert decode_entry(encode_entry(refused, 0.0)).event == refused
    event = decode_entry(encode_entry(ToolsRan("j", "s", seconds), 0.0)).event  # type: ignore[arg-type]
    assert isinstance(event, ToolsRan)
    assert event.seconds == seconds


def test_not_a_number_survives() -> None:
    event = decode_entry(encode_entry(ToolsRan("j", "s", math.nan), 0.0)).event  # type: ignore[arg-type]
    assert isinstance(event, ToolsRan)
    assert math.isnan(event.seconds)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "truncated"),
        (b'[1.0, "TimerFired"]', "length"),
        (b'[1.0, "Unheard", {}, []]', "unknown event 'Unheard'"),
        (b'[1.0, "TimerFired", {}, []]', "timer_id"),
        (b'[1.0, "TimerFired", {"timer_id": "t"}, [["Unheard", {}]]]', "unknown effect 'Unheard'"),
        (
            b'[1.0, "StageProgressed", {"stage_id": "s", "attempt": 1.5, "output_tokens": 1}, []]',
            "int",
        ),
    ],
)
def test_a_line_that_is_no_event_is_refused(line: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_entry(line)


def test_a_line_is_one_readable_array() -> None:
    line = encode_entry(TimerFired(TimerId("wait:s1")), 1.5)
    assert line == b'[1.5,"TimerFired",{"timer_id":"wait:s1"},[]]'
    progress = StageProgressed(StageId("s"), 2, 30)
    assert encode_entry(progress, 0.25).startswith(b'[0.25,"StageProgressed",{"stage_id":"s"')
