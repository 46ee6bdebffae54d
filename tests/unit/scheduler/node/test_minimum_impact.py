"""Algorithm 2: the lexicographic minimum, beside brute force on small random instances."""

import itertools
import random

import pytest

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.scheduler.node.degradation import DegradationPlan
from maestroctl.scheduler.node.minimum_impact import (
    EXACT_ENGINES,
    MinimumImpact,
    Need,
    plan_greedily,
)
from maestroctl.scheduler.node.pressure_baselines import AbortFirst, EvictAll
from maestroctl.scheduler.node.residency import GiveWayAction, GiveWayChoice, VictimView

A = GiveWayAction
HOST = ResidencyTier.HOST


def make_view(name: str, *choices: GiveWayChoice, busy: bool = False) -> VictimView:
    return VictimView(
        engine_id=name,
        model=name,
        status=EngineStatus.ACTIVE if busy else EngineStatus.IDLE,
        tier=ResidencyTier.DEVICE,
        busy=busy,
        leaving=False,
        last_used_s=0.0,
        interactive=False,
        choices=choices,
    )


def sleep(d: int, cost: float, host: int = 0) -> GiveWayChoice:
    return GiveWayChoice(1, A.SLEEP, {"d": d, "host": -host}, cost, HOST)


def stop(d: int, cost: float) -> GiveWayChoice:
    return GiveWayChoice(2, A.STOP, {"d": d}, cost)


def suspend(d: int, cost: float, harm: int = 0) -> GiveWayChoice:
    return GiveWayChoice(4, A.SUSPEND, {"d": d}, cost, HOST, harm)


def abort(d: int, cost: float, harm: int = 0) -> GiveWayChoice:
    return GiveWayChoice(5, A.ABORT, {"d": d}, cost, harm=harm)


def plan(deficit, views, *, host=100, may_drain=True, max_level=5) -> DegradationPlan | None:
    policy = MinimumImpact()
    return policy.plan(deficit, views, host, may_drain=may_drain, max_level=max_level)


def steps(found: DegradationPlan | None) -> list[tuple[str, str]] | None:
    return found and [(step.engine_id, str(step.choice.action)) for step in found.steps]


def test_lower_level_wins_whatever_it_costs():
    views = [make_view("a", sleep(5, 99.0), stop(9, 100.0)), make_view("b", stop(5, 1.0))]
    assert steps(plan({"d": 5}, views)) == [("a", "sleep")]


def test_cheapest_set_wins_over_cheapest_first():
    views = [
        make_view("a", sleep(6, 3.0)),
        make_view("b", sleep(5, 2.0)),
        make_view("c", sleep(5, 2.1)),
    ]
    assert steps(plan({"d": 6}, views)) == [("a", "sleep")]
    assert steps(plan({"d": 10}, views)) == [("b", "sleep"), ("c", "sleep")]


def test_fewer_engines_win_at_the_same_cost():
    views = [
        make_view("a", sleep(5, 1.0)),
        make_view("b", sleep(5, 1.0)),
        make_view("c", sleep(10, 2.0)),
    ]
    assert steps(plan({"d": 10}, views)) == [("c", "sleep")]


def test_batch_is_suspended_before_interactive_whatever_it_costs():
    views = [
        make_view("chat", suspend(5, 1.0, harm=1), busy=True),
        make_view("bulk", suspend(5, 50.0), busy=True),
    ]
    assert steps(plan({"d": 5}, views)) == [("bulk", "suspend")]


def test_suspending_comes_before_aborting_and_unstarted_before_streams():
    open_ = make_view("open", abort(5, 1.0, harm=2), busy=True)
    queued = make_view("queued", abort(5, 30.0), busy=True)
    frozen = make_view("frozen", suspend(5, 90.0), busy=True)
    assert steps(plan({"d": 5}, [open_, queued, frozen])) == [("frozen", "suspend")]
    assert steps(plan({"d": 5}, [open_, queued])) == [("queued", "abort")]
    assert steps(plan({"d": 5}, [open_])) == [("open", "abort")]


def test_busy_engine_is_only_drained_below_level_four():
    view = make_view("a", sleep(5, 1.0), suspend(5, 9.0), busy=True)
    assert plan({"d": 5}, [view], may_drain=False, max_level=3) is None
    assert steps(plan({"d": 5}, [view], max_level=3)) == [("a", "sleep")]
    assert steps(plan({"d": 5}, [view])) == [("a", "suspend")]


def test_maestro_leaves_starts_alone():
    start = make_view("s", GiveWayChoice(3, A.KILL_START, {"d": 5}, 1.0), busy=True)
    assert MinimumImpact(kills_starts=False).plan({"d": 5}, [start], 0, may_drain=True) is None
    assert steps(plan({"d": 5}, [start], max_level=3)) == [("s", "kill_start")]


def random_views(rng: random.Random, num: int) -> list[VictimView]:
    views = []
    for number in range(num):
        d, e = rng.randint(0, 9), rng.choice([0, 0, rng.randint(1, 9)])
        cost = rng.choice([0.0, 1.0, rng.uniform(0, 20)])
        chain = []
        if rng.random() < 0.7:
            freed = {"d": d, "e": e, "host": -rng.randint(0, 6)}
            chain.append(GiveWayChoice(1, A.SLEEP, freed, cost, HOST))
        cost += rng.choice([0.0, rng.uniform(0, 20)])
        freed = {"d": d + rng.randint(0, 2), "e": e, "host": rng.choice([0, 0, 5])}
        chain.append(GiveWayChoice(2, A.STOP, freed, cost))
        if rng.random() < 0.4:
            freed = {"d": d + 3, "e": e + 1, "host": -rng.randint(0, 4)}
            chain.append(GiveWayChoice(4, A.SUSPEND, freed, cost * 2, HOST, rng.randint(0, 1)))
            chain.append(
                GiveWayChoice(5, A.ABORT, {"d": d + 4, "e": e + 2}, 30.0, harm=rng.randint(0, 3))
            )
        views.append(make_view(f"e{number}", *chain))
    return views


def best_by_brute_force(deficit, views, host):
    best = None
    for picks in itertools.product(*[[None, *v.choices] for v in views]):
        chosen = [c for c in picks if c is not None]
        if not Need(deficit, host).is_met(chosen):
            continue
        rung = max(((c.level, c.harm) for c in chosen), default=(0, 0))
        impact = (*rung, sum(c.cost_s for c in chosen), len(chosen))
        if best is None or impact < best:
            best = impact
    return best


@pytest.mark.parametrize("seed", range(400))
def test_plan_is_the_minimum_that_brute_force_finds(seed):
    rng = random.Random(seed)
    views = random_views(rng, rng.randint(1, 6))
    deficit = {"d": rng.randint(1, 40)}
    if rng.random() < 0.5:
        deficit["e"] = rng.randint(1, 20)
    host = rng.randint(0, 15)
    found = plan(deficit, views, host=host)
    best = best_by_brute_force(deficit, views, host)
    assert (found is None) == (best is None)
    if found is not None:
        assert Need(deficit, host).is_met([step.choice for step in found.steps])
        level, harm, cost, num = found.impact
        assert (level, harm) == best[:2]
        assert cost == pytest.approx(best[2])
        assert num == best[3] or cost < best[2]


@pytest.mark.parametrize("seed", range(60))
def test_exact_plan_is_never_worse_than_the_greedy_one(seed):
    rng = random.Random(seed)
    views = random_views(rng, EXACT_ENGINES)
    need = Need({"d": rng.randint(10, 60)}, 20)
    sleepers = [(v, [c for c in v.choices if c.level <= 2]) for v in views]
    greedy = plan_greedily(need, sleepers)
    exact = plan({"d": need.missing[0]}, views, host=20)
    if greedy is not None:
        assert exact is not None
        assert exact.impact <= greedy.impact


@pytest.mark.parametrize("seed", range(40))
def test_large_nodes_get_a_plan_without_redundant_items(seed):
    rng = random.Random(seed)
    views = random_views(rng, 50)
    deficit = {"d": rng.randint(20, 120)}
    found = plan(deficit, views, host=60)
    assert found is not None
    chosen = [step.choice for step in found.steps]
    need = Need(deficit, 60)
    assert need.is_met(chosen)
    assert not any(need.is_met(chosen[:i] + chosen[i + 1 :]) for i in range(len(chosen)))


def test_baselines_disturb_more_than_needed():
    views = [
        make_view("a", sleep(5, 1.0), stop(6, 9.0)),
        make_view("b", sleep(5, 1.0), stop(6, 9.0)),
        make_view("c", sleep(5, 1.0), suspend(5, 5.0), abort(6, 20.0), busy=True),
    ]
    all_out = EvictAll().plan({"d": 5}, views, 100, may_drain=False)
    assert steps(all_out) == [("a", "stop"), ("b", "stop")]
    first = AbortFirst().plan({"d": 10}, views[::-1], 100, may_drain=False)
    assert steps(first) == [("a", "stop"), ("b", "stop")]
    assert steps(AbortFirst().plan({"d": 5}, views[2:], 100, may_drain=False)) == [("c", "abort")]
