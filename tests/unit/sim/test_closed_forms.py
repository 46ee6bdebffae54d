"""The simulator beside what queueing theory and arithmetic say: before anything is believed."""

from __future__ import annotations

import math
import random
from collections import deque
from heapq import heappop, heappush
from statistics import fmean

import pytest

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.llm import IterationCost
from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.workflow import RepeatSpec, StepSpec, WorkflowSpec
from maestroctl.sim.jobs import Call, JobPlan, chain_workflow
from tests.unit.sim.support import (
    make_profile,
    make_world,
    many_calls,
    one_call,
    poisson_calls,
    waits,
)

LOAD = 0.5


def _loop_workflow(name: str, roles: tuple[str, ...], rounds: int) -> WorkflowSpec:
    """A chain that goes back to its first step until `rounds` rounds are done."""
    chain = chain_workflow(name, roles)
    steps = dict(chain.steps)
    last = f"s{len(roles)}"
    repeat = RepeatSpec("s1", "False", rounds)
    steps[last] = StepSpec(last, "", role=roles[-1], after=steps[last].after, repeat=repeat)
    return WorkflowSpec(name, steps)


def _fan_workflow(name: str, head: str, body: str, tail: str) -> WorkflowSpec:
    """One call, then as many at once as its plan says, then one that reads them all."""
    steps = {
        "head": StepSpec("head", "", role=head),
        "body": StepSpec("body", "", role=body, after=("head",), for_each="{{ items }}"),
        "tail": StepSpec("tail", "", role=tail, after=("body",)),
    }
    return WorkflowSpec(name, steps)


def _exponential(rng: random.Random) -> int:
    return max(1, round(rng.expovariate(1 / 1000)))


def test_fcfs_on_one_server_follows_lindleys_recursion_job_by_job() -> None:
    plans = poisson_calls(1, 2000, LOAD, _exponential)
    result = make_world().run(plans)
    finished = {job.job_id: job.finished_at for job in result.jobs}
    free_s = 0.0
    for plan in plans:
        free_s = max(free_s, plan.arrival_s) + 0.001 * plan.output_tokens
        assert finished[plan.job_id] == pytest.approx(free_s, abs=1e-6)


def test_mean_wait_of_exponential_service_is_that_of_m_m_1() -> None:
    plans = poisson_calls(5, 20_000, LOAD, _exponential)
    expected_s = LOAD / (1 - LOAD)  # rho s / (1 - rho), s = 1 second
    assert fmean(waits(make_world().run(plans))) == pytest.approx(expected_s, rel=0.1)


def test_mean_wait_of_constant_service_is_that_of_m_d_1() -> None:
    plans = poisson_calls(3, 20_000, LOAD, lambda _rng: 1000)
    expected_s = LOAD / (2 * (1 - LOAD))
    assert fmean(waits(make_world().run(plans))) == pytest.approx(expected_s, rel=0.1)


SHORT, LONG, SHORT_SHARE = 500, 3000, 0.8
SJF_RATE = LOAD / (SHORT_SHARE * 0.5 + (1 - SHORT_SHARE) * 3.0)


def _two_lengths(rng: random.Random) -> int:
    return SHORT if rng.random() < SHORT_SHARE else LONG


def _shortest_first(plans: list[JobPlan], ahead: int) -> dict[str, float]:
    """When each job begins on one server; `ahead` jobs are committed before their turn."""
    begins: dict[str, float] = {}
    queue: list[tuple[int, str]] = []
    committed: list[tuple[int, str]] = []
    coming = deque(plans)
    free_s = 0.0
    while coming or queue or committed:
        if not (queue or committed):
            free_s = max(free_s, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= free_s:
            plan = coming.popleft()
            heappush(queue, (plan.output_tokens, plan.job_id))
            while queue and len(committed) < ahead:
                committed.append(heappop(queue))
        tokens, job_id = committed.pop(0) if committed else heappop(queue)
        while queue and len(committed) < ahead:
            committed.append(heappop(queue))
        begins[job_id] = free_s
        free_s += 0.001 * tokens
    return begins


def test_the_reference_of_shortest_job_first_has_the_waits_of_m_g_1() -> None:
    """Cobham: W_k = W_0 / ((1 - s_{k-1}) (1 - s_k)) for non-preemptive priorities."""
    plans = poisson_calls(4, 40_000, SJF_RATE, _two_lengths)
    begins = _shortest_first(plans, ahead=0)
    w0 = SJF_RATE * (SHORT_SHARE * 0.25 + (1 - SHORT_SHARE) * 9.0) / 2
    rho_short = SJF_RATE * SHORT_SHARE * 0.5
    expected = {SHORT: w0 / (1 - rho_short), LONG: w0 / ((1 - rho_short) * (1 - LOAD))}
    for tokens, wait_s in expected.items():
        waits_s = [begins[p.job_id] - p.arrival_s for p in plans if p.output_tokens == tokens]
        assert fmean(waits_s) == pytest.approx(wait_s, rel=0.1)


def test_shortest_job_first_follows_the_reference_job_by_job() -> None:
    """A node takes one stage more than its batch, so one is committed before its turn."""
    plans = poisson_calls(4, 3000, SJF_RATE, _two_lengths)
    world = make_world(policy=PolicySpec(ordering="sjf", aging_s=0.0))
    finished = {job.job_id: job.finished_at for job in world.run(plans).jobs}
    begins = _shortest_first(plans, ahead=1)
    for plan in plans:
        end_s = begins[plan.job_id] + 0.001 * plan.output_tokens
        assert finished[plan.job_id] == pytest.approx(end_s, abs=1e-6)


def test_one_sequence_takes_prefill_chunks_and_one_iteration_per_further_token() -> None:
    cost = IterationCost(c0_s=0.010, c1_s=0.002, c2_s=1e-6, cp_s=1e-4)
    world = make_world([make_profile(iteration=cost)])
    result = world.run([one_call(0, 1.0, 100, prompt=5000)])
    chunks = [2048, 2048, 904]
    prefill_s = sum(0.010 + 1e-4 * chunk for chunk in chunks)
    decode_s = sum(0.012 + 1e-6 * (5001 + k) for k in range(99))
    (row,) = result.stages
    assert row.first_byte_at == pytest.approx(1.0 + prefill_s)
    assert row.ended_at == pytest.approx(1.0 + prefill_s + decode_s)


def test_a_batch_decodes_together_and_slows_down_by_c1_per_sequence() -> None:
    cost = IterationCost(c0_s=0.010, c1_s=0.002, c2_s=0.0, cp_s=0.0)
    world = make_world([make_profile(iteration=cost, max_batch=8)])
    model = (ModelName("m"),)
    fan = JobPlan(
        JobId("fan"),
        _fan_workflow("fan", "planner", "worker", "writer"),
        ServiceClass.BATCH,
        1.0,
        {
            ("head", 1, 0): [Call("planner", model, 1, 1)],
            **{("body", 1, item): [Call("worker", model, 1, 101)] for item in range(8)},
            ("tail", 1, 0): [Call("writer", model, 1, 1)],
        },
        widths={("body", 1): 8},
    )
    result = world.run([fan])
    ends = {row.ended_at for row in result.stages if row.role == "worker"}
    # One iteration for the planner, one that prefills all workers, then 100 iterations of eight.
    assert len(ends) == 1
    assert ends.pop() == pytest.approx(1.0 + 2 * 0.010 + 100 * (0.010 + 0.002 * 8))


def test_a_loop_runs_its_rounds() -> None:
    model = (ModelName("m"),)
    runs = {
        (step, visit, 0): [Call("x", model, 1, 100)] for visit in (1, 2, 3) for step in ("s1", "s2")
    }
    loop = JobPlan(
        JobId("loop"),
        _loop_workflow("loop", ("x", "x"), 5),
        ServiceClass.BATCH,
        1.0,
        runs,
        goes_back=frozenset({("s2", 1, 0), ("s2", 2, 0)}),
    )
    result = make_world().run([loop])
    assert len(result.stages) == 6
    assert result.jobs[0].finished_at == pytest.approx(1.6)


def test_a_prefill_delays_decoding_sequences_by_its_own_length() -> None:
    cost = IterationCost(c0_s=0.010, c1_s=0.0, c2_s=0.0, cp_s=0.001)
    world = make_world([make_profile(iteration=cost, max_batch=2)])
    alone = one_call(0, 1.0, 101)
    result = world.run([alone, one_call(1, 1.5, 5, prompt=1000)])
    first = next(row for row in result.stages if row.job_id == alone.job_id)
    assert first.ended_at == pytest.approx(1.0 + 0.011 + 100 * 0.010 + 1.0)


def test_a_server_never_idles_while_work_waits() -> None:
    """Work conservation: with all jobs at once, the makespan is the work."""
    rng = random.Random(5)
    plans = [one_call(i, 1.0, _exponential(rng)) for i in range(300)]
    result = make_world().run(plans)
    work_s = 0.001 * sum(plan.output_tokens for plan in plans)
    assert max(job.finished_at or 0 for job in result.jobs) == pytest.approx(1.0 + work_s)
    assert result.busy_s["m@n1"] == pytest.approx(work_s)


def test_calls_of_a_job_follow_one_another_with_their_tools_between() -> None:
    model = (ModelName("m"),)
    calls = [
        Call("a", model, 1, 100, tool_s=2.0),
        Call("b", model, 1, 200),
        Call("a", model, 1, 50),
    ]
    result = make_world().run([many_calls(0, 1.0, calls)])
    (job,) = result.jobs
    assert job.status is JobStatus.FINISHED
    assert job.finished_at == pytest.approx(1.0 + 0.1 + 2.0 + 0.2 + 0.05)
    assert [(row.role, row.outcome) for row in result.stages] == [
        (role, Outcome.FINISHED) for role in "aba"
    ]


def test_little_s_law_holds() -> None:
    plans = poisson_calls(6, 3000, LOAD, _exponential)
    result = make_world().run(plans)
    span_s = result.end_s - plans[0].arrival_s
    in_system = sum((job.finished_at or 0) - job.submitted_at for job in result.jobs) / span_s
    changes = sorted(
        [(job.submitted_at, 1) for job in result.jobs]
        + [(job.finished_at or math.inf, -1) for job in result.jobs]
    )
    area, level, since_s = 0.0, 0, plans[0].arrival_s
    for at_s, step in changes:
        area += level * (at_s - since_s)
        level, since_s = level + step, at_s
    assert in_system == pytest.approx(area / span_s, rel=1e-6)
