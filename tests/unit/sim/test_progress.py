"""Tokens of running stages are told while they come, where that is asked for."""

from __future__ import annotations

import pytest

from maestroctl.scheduler.events import CoordinatorEvent, StageEnded, StageProgressed
from maestroctl.sim.network import NetworkSpec
from tests.unit.sim.support import make_profile, make_world, one_call


def play(progress_every_s: float | None) -> list[tuple[float, CoordinatorEvent]]:
    """One stage of 1,000 tokens beside one of 300, a millisecond each; all that is told."""
    told: list[tuple[float, CoordinatorEvent]] = []
    network = NetworkSpec(0.0, 0.0, None, progress_every_s)
    world = make_world(
        [make_profile(max_batch=2)],
        network=network,
        listen=lambda event, now_s: told.append((now_s, event)),
    )
    world.run([one_call(0, 0.0, 1000), one_call(1, 0.0, 300)], limit_s=5.0)
    return told


def test_a_stage_tells_as_many_tokens_as_milliseconds_have_passed() -> None:
    told = play(0.2)
    progress = [(at_s, e) for at_s, e in told if isinstance(e, StageProgressed)]
    assert [e.output_tokens for _, e in progress if e.stage_id == "j000001/0"] == [
        pytest.approx(200, abs=1)
    ]
    long = [(at_s, e.output_tokens) for at_s, e in progress if e.stage_id == "j000000/0"]
    assert [at_s for at_s, _ in long] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    for at_s, tokens in long:
        assert tokens == pytest.approx(1000 * at_s, abs=1)


def test_a_stage_that_ended_tells_nothing_more() -> None:
    told = play(0.2)
    ended = {e.stage_id: at_s for at_s, e in told if isinstance(e, StageEnded)}
    assert len(ended) == 2
    for at_s, event in told:
        if isinstance(event, StageProgressed):
            assert at_s < ended[event.stage_id]


def test_without_it_nothing_is_told_before_the_end() -> None:
    assert not any(isinstance(e, StageProgressed) for _, e in play(None))
