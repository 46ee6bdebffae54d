"""What every `OrderingPolicy` must keep, whatever it prefers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import ServiceClass, StageDescriptor
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.coordinator_state import LATE_RANK, JobState, StageState
from maestroctl.scheduler.events import StageEnded
from maestroctl.scheduler.ordering.aging import Aged
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.ordering.stage_queue import StageQueue
from maestroctl.scheduler.registry import ORDERINGS
from maestroctl.testing.coordinator_builders import (
    arrival,
    fingerprint,
    limited,
    make_engine,
    make_fleet,
    make_snapshot,
    make_stage,
    node_says,
)

POLICY = PolicySpec()


@st.composite
def situations(draw: st.DrawFn) -> tuple[object, JobState, Prediction]:
    """A stage that became ready, its job so far, and what is predicted."""
    stage = make_stage(
        arrival_s=draw(st.floats(0, 1e6)),
        prompt_tokens=draw(st.integers(0, 100_000)),
        service_class=draw(st.sampled_from(list(ServiceClass))),
        max_tokens=draw(st.none() | st.integers(1, 100_000)),
    )
    deadline_s = draw(st.none() | st.floats(0, 2e6))
    job = JobState(stage.job_id, "flow", stage.service_class, stage.arrival_s, deadline_s)
    job.attained_s = draw(st.floats(0, 1e5))
    job.attained_tokens = draw(st.integers(0, 10**6))
    low, high = sorted(draw(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5))))
    totals = draw(st.sampled_from([{}, {"m": 500.0}]))
    return stage, job, Prediction(low, high, total_tokens=totals)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ORDERINGS)
@settings(deadline=None)
@given(situation=situations(), later_s=st.floats(0, 1e4))
def test_a_key_is_a_number_that_does_not_depend_on_when_it_is_asked(
    name: str, situation: tuple[object, JobState, Prediction], later_s: float
) -> None:
    stage, job, prediction = situation
    policy = ORDERINGS[name](POLICY)
    before = fingerprint(job)
    key = policy.key(stage, job, prediction, 1e6)  # type: ignore[arg-type]
    assert not math.isnan(key)
    assert ORDERINGS[name](POLICY).key(stage, job, prediction, 1e6 + later_s) == key  # type: ignore[arg-type]
    assert fingerprint(job) == before


@pytest.mark.parametrize("name", ORDERINGS)
@settings(deadline=None)
@given(situation=situations(), earlier_s=st.floats(1, 1e5))
def test_of_two_equal_stages_the_earlier_one_goes_first(
    name: str, situation: tuple[object, JobState, Prediction], earlier_s: float
) -> None:
    stage, job, prediction = situation
    early = make_stage("early", arrival_s=stage.arrival_s - earlier_s)  # type: ignore[attr-defined]
    late = make_stage("late", arrival_s=stage.arrival_s)  # type: ignore[attr-defined]
    policy = ORDERINGS[name](limited(aging_s=1.0))
    assert policy.key(early, job, prediction, 1e6) < policy.key(late, job, prediction, 1e6)


@pytest.mark.parametrize("name", ORDERINGS)
@settings(deadline=None)
@given(situation=situations())
def test_the_hooks_take_what_the_core_tells_them(
    name: str, situation: tuple[object, JobState, Prediction]
) -> None:
    stage, job, _ = situation
    policy = ORDERINGS[name](POLICY)
    policy.on_stage_ended(stage, job, 1.5, 30)  # type: ignore[arg-type]
    policy.on_tools_ran(job, "step", 0.5)
    policy.on_job_gone(job.job_id)
    policy.on_job_gone(JobId("never seen"))


AGED = [name for name, make in ORDERINGS.items() if isinstance(make(POLICY), Aged)]
LENGTHS = st.integers(0, 5000)


@pytest.mark.parametrize("name", ORDERINGS)
@settings(deadline=None)
@given(arrivals=st.lists(st.tuples(st.floats(0, 1e4), LENGTHS), min_size=2, max_size=12))
def test_any_stages_are_in_one_total_order_whatever_order_they_come_in(
    name: str, arrivals: list[tuple[float, int]]
) -> None:
    states = [_ready(ORDERINGS[name](POLICY), n, *it) for n, it in enumerate(arrivals)]
    orders = []
    for given_order in (states, states[::-1]):
        queue = StageQueue()
        for state in given_order:
            queue.push(state, 0.0)
        orders.append([state.stage_id for state in queue])
    assert orders[0] == orders[1]


@pytest.mark.parametrize("name", ORDERINGS)
@settings(deadline=None)
@given(at_s=st.floats(0, 1e4), tokens=LENGTHS, names=st.permutations("abcdef"))
def test_ties_are_broken_by_the_id_of_the_stage(
    name: str, at_s: float, tokens: int, names: list[str]
) -> None:
    queue = StageQueue()
    for stage_id in names:
        queue.push(_ready(ORDERINGS[name](POLICY), stage_id, at_s, tokens), 0.0)
    assert [state.stage_id for state in queue] == sorted(f"s{stage_id}" for stage_id in names)


@pytest.mark.parametrize("name", ORDERINGS)
@pytest.mark.parametrize("late", [False, True])
def test_a_key_stays_while_other_stages_come_and_end(name: str, late: bool) -> None:
    """Unless the policy says that a stage may lapse: then once, from rank 1 to the late rank."""
    core = CoordinatorCore(make_fleet(policy=limited(ordering=name)), 1)
    core.handle(node_says(make_snapshot(engines=[make_engine(slots=1)])), 0.0)
    deadlines = (5.0, 500.0, None, 900.0) if late else (None,) * 4
    keys: dict[str, list[tuple[int, float]]] = {}
    for number in range(40):
        now_s = 2.0 * number
        core.handle(arrival(_stage(number, now_s, deadlines[number % 4])), now_s)
        running = core.in_flight()[0]
        usage = Usage(50, 10 + number)
        ended = StageEnded(running.stage_id, running.attempt, Outcome.FINISHED, True, usage)
        if number % 2:
            core.handle(ended, now_s + 1.0)
        core.validate()
        for state in core._tables.queue:
            seen = keys.setdefault(state.stage_id, [])
            if not seen or seen[-1] != (state.rank, state.key):
                seen.append((state.rank, state.key))
    assert keys
    for seen in keys.values():
        ranks = [rank for rank, _ in seen]
        assert ranks in ([1], [LATE_RANK], [1, LATE_RANK])
        assert ranks == [1] or ORDERINGS[name](POLICY).can_lapse


@pytest.mark.parametrize("name", AGED)
@settings(deadline=None)
@given(
    situation=situations(),
    rate=st.floats(0.01, 10.0),
    after_s=st.floats(0.001, 1e5),
)
def test_with_aging_a_stage_is_overtaken_only_by_those_within_its_bound(
    name: str, situation: tuple[object, JobState, Prediction], rate: float, after_s: float
) -> None:
    stage, job, prediction = situation
    policy = ORDERINGS[name](limited(aging_s=rate))
    other = ORDERINGS[name](limited(aging_s=rate))
    assert isinstance(policy, Aged)
    key = policy.key(stage, job, prediction, 0.0)  # type: ignore[arg-type]
    size = max(0.0, ORDERINGS[name](POLICY).size(stage, job, prediction))  # type: ignore[attr-defined]
    later_s = stage.arrival_s + policy.overtaken_for_s(size) + after_s  # type: ignore[attr-defined]
    best = Prediction(0.0, 0.0)  # nothing to do: the smallest there can be
    newcomer = make_stage("new", arrival_s=later_s, prompt_tokens=0)
    fresh = JobState(newcomer.job_id, "", newcomer.service_class, later_s, None)
    assert other.key(newcomer, fresh, best, later_s) >= key * (1 - 1e-12)


@pytest.mark.parametrize("name", [*AGED, "fcfs", "mlfq"])
def test_a_long_stage_is_served_in_the_end_however_many_short_ones_come(name: str) -> None:
    policy = ORDERINGS[name](limited(aging_s=1.0, max_wait_s=10.0))
    queue = StageQueue()
    job = JobState(JobId("long"), "", ServiceClass.BATCH, 0.0, None)
    job.attained_s = 60.0
    stage = make_stage("long", job="long", arrival_s=0.0)
    big = Prediction(2000.0, 2000.0, total_tokens={ModelName("m"): 4000.0}, rank_score=2000.0)
    queue.push(StageState(stage, big, job, policy.key(stage, job, big, 0.0)), 0.0)
    for second in range(1, 200):
        queue.push(_ready(policy, second, float(second), 1), float(second))
        first = next(iter(queue))
        queue.remove(first)
        if first.stage_id == "long":
            assert second <= 90
            return
    pytest.fail("it was never served")


PROGRAM = """
import random
from dataclasses import replace
from maestroctl.domain.ids import JobId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.events import StageEnded
from maestroctl.scheduler.registry import ORDERINGS
from maestroctl.testing.coordinator_builders import (
    arrival, make_fleet, make_snapshot, make_stage, node_says)
for name in ORDERINGS:
    core = CoordinatorCore(make_fleet(policy=PolicySpec(ordering=name)), 1)
    core.handle(node_says(make_snapshot()), 0.0)
    chance = random.Random(7)
    for n in range(120):
        stage = make_stage(f"s{n}", f"j{n % 9}", arrival_s=float(n), role="abc"[n % 3])
        stage = replace(stage, workflow=f"w{n % 4}", deadline_s=chance.choice([None, n + 20.0]))
        tokens = float(chance.randrange(500))
        guess = Prediction(tokens, 2 * tokens, total_tokens={"m": 3 * tokens}, rank_score=tokens)
        effects = core.handle(arrival(stage, guess), float(n))
        for view in core.in_flight()[:1] if n % 3 else ():
            end = StageEnded(view.stage_id, view.attempt, Outcome.FINISHED, True, Usage(50, n))
            effects = effects + core.handle(end, n + 0.5)
        print(effects)
"""


def test_decisions_do_not_depend_on_the_hash_seed() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0]
    assert outputs[0] == outputs[1]


def _ready(policy: OrderingPolicy, number: int | str, at_s: float, tokens: int) -> StageState:
    """A stage of a job of its own that has just become ready."""
    stage = make_stage(f"s{number}", arrival_s=at_s)
    job = JobState(stage.job_id, "", stage.service_class, at_s, at_s + 100.0)
    guess = Prediction(tokens, tokens, total_tokens={ModelName("m"): 2.0 * tokens})
    return StageState(stage, guess, job, policy.key(stage, job, guess, at_s))


def _stage(number: int, at_s: float, deadline_s: float | None) -> StageDescriptor:
    stage = make_stage(f"s{number}", f"j{number % 7}", arrival_s=at_s, role="ab"[number % 2])
    return replace(stage, deadline_s=deadline_s)
