"""Plans of levels 1 and 2: enough, no more than needed, within host memory."""

import itertools
import random

import pytest

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.scheduler.node.degradation import DegradationPlan
from maestroctl.scheduler.node.lru_degradation import LruDegradation
from maestroctl.scheduler.node.residency import (
    GiveWayAction,
    GiveWayChoice,
    LruResidency,
    VictimView,
)

SLEEP, STOP = GiveWayAction.SLEEP, GiveWayAction.STOP
HOST, DISK = ResidencyTier.HOST, ResidencyTier.DISK


def view(name: str, *choices: GiveWayChoice, busy: bool = False, **fields) -> VictimView:
    defaults = {
        "status": EngineStatus.IDLE,
        "tier": ResidencyTier.DEVICE,
        "leaving": False,
        "last_used_s": 0.0,
        "interactive": False,
    }
    return VictimView(engine_id=name, model=name, busy=busy, choices=choices, **(defaults | fields))


def sleep(d: int, tier: ResidencyTier = DISK, host: int = 0) -> GiveWayChoice:
    freed = {"d": d, "host": -host} if host else {"d": d}
    return GiveWayChoice(1, SLEEP, freed, 1.0, tier)


def stop(d: int, host: int = 0, cost: float = 9.0) -> GiveWayChoice:
    return GiveWayChoice(2, STOP, {"d": d, "host": host}, cost)


def steps(plan: DegradationPlan | None) -> list[tuple[str, str]] | None:
    if plan is None:
        return None
    return [(step.engine_id, str(step.choice.action)) for step in plan.steps]


def plan(deficit, views, host=100, *, may_drain=False, partial=False):
    policy = LruDegradation()
    return steps(policy.plan(deficit, views, host, may_drain=may_drain, partial=partial))


def test_first_in_order_sleeps_and_the_rest_is_left_alone():
    views = [view("a", sleep(5), stop(6)), view("b", sleep(5), stop(6))]
    assert plan({"d": 5}, views) == [("a", "sleep")]


def test_everybody_sleeps_before_anybody_stops():
    views = [view("a", sleep(5), stop(6)), view("b", sleep(5), stop(6))]
    assert plan({"d": 10}, views) == [("a", "sleep"), ("b", "sleep")]
    assert plan({"d": 11}, views) == [("a", "stop"), ("b", "sleep")]


def test_item_that_turned_out_redundant_is_dropped():
    views = [view("a", sleep(2)), view("b", sleep(12))]
    assert plan({"d": 10}, views) == [("b", "sleep")]


def test_busy_engines_count_only_when_they_may_be_drained():
    views = [view("a", sleep(5), busy=True)]
    assert plan({"d": 5}, views) is None
    assert plan({"d": 5}, views, may_drain=True) == [("a", "sleep")]


def test_too_little_is_no_plan_unless_partial():
    views = [view("a", sleep(5))]
    assert plan({"d": 6}, views) is None
    assert plan({"d": 6}, views, partial=True) == [("a", "sleep")]
    assert plan({"d": 6}, [], partial=True) == []


def test_sleep_that_does_not_fit_the_host_is_another_tier_or_a_stop():
    host_only = view("a", sleep(5, HOST, host=4), stop(6))
    both = view("b", sleep(5, HOST, host=4), sleep(5, DISK), stop(6))
    assert plan({"d": 5}, [host_only], host=3) == [("a", "stop")]
    chosen = LruDegradation().plan({"d": 5}, [both], 3, may_drain=False)
    assert chosen.steps[0].choice.tier is DISK


def test_stop_that_empties_the_host_lets_the_next_one_sleep_and_goes_first():
    sleeper = view("s", stop(1, host=4), status=EngineStatus.SLEEPING)
    awake = view("a", sleep(5, HOST, host=4), stop(6))
    assert plan({"d": 6}, [sleeper, awake], host=0) == [("s", "stop"), ("a", "sleep")]


def test_engine_that_frees_nothing_where_memory_lacks_is_left_alone():
    other = view("o", GiveWayChoice(1, SLEEP, {"e": 50}, 1.0, DISK))
    assert plan({"d": 5}, [other, view("a", sleep(5))]) == [("a", "sleep")]


@pytest.mark.parametrize("seed", range(200))
def test_plan_frees_the_deficit_whenever_brute_force_can(seed):
    rng = random.Random(seed)
    views = []
    for number in range(rng.randint(1, 5)):
        freed = rng.randint(1, 9)
        chain = [sleep(freed)] if rng.random() < 0.7 else []
        views.append(view(f"e{number}", *chain, stop(freed + rng.randint(0, 3))))
    deficit = {"d": rng.randint(1, 30)}
    options = [[None, *v.choices] for v in views]
    possible = [
        sum(c.freed_bytes["d"] for c in picks if c) >= deficit["d"]
        for picks in itertools.product(*options)
    ]
    found = LruDegradation().plan(deficit, views, 0, may_drain=False)
    assert (found is not None) == any(possible)
    if found is not None:
        freed = [step.choice.freed_bytes["d"] for step in found.steps]
        assert sum(freed) >= deficit["d"]
        assert all(sum(freed) - one < deficit["d"] for one in freed)  # nothing redundant


def test_lru_ranks_leaving_then_idle_then_least_recently_used():
    views = [
        view("busy", busy=True, last_used_s=0.0),
        view("new", last_used_s=9.0),
        view("old", last_used_s=1.0),
        view("leaving", busy=True, leaving=True, last_used_s=5.0),
        view("also-old", last_used_s=1.0),
    ]
    ranked = [v.engine_id for v in LruResidency().rank_victims(views, 10.0)]
    assert ranked == ["leaving", "also-old", "old", "new", "busy"]
