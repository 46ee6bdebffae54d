"""Random lives of a coordinator: whatever happens, every promise of `CoordinatorCore` holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from maestroctl.domain.ids import JobId, NodeName, StageId, TimerId
from maestroctl.domain.outcome import JobStatus, Outcome, Usage
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    JobCancelled,
    NodeLost,
    PredictionArrived,
    ShutdownRequested,
    StageCancelled,
    StageEnded,
    StageProgressed,
    StageRefused,
    StageStarted,
    StepFailed,
    StepFinished,
    StepPrepared,
    StepRef,
    StepResult,
    TimerFired,
    ToolsRan,
)
from maestroctl.testing.coordinator_builders import (
    arrival,
    fingerprint,
    make_snapshot,
    make_stage,
    node_says,
    step_done,
    submission,
)
from tests.properties.coordinator_world import FAILED, NODES, WORKFLOWS, FakeJob, World

some = st.integers(0, 99)
"""Picks one of what there is; small numbers shrink well."""


def pick(things: Sequence[Any], number: int) -> Any:
    """One of them."""
    return things[number % len(things)]


class CoordinatorLife(RuleBasedStateMachine):
    """Drives a `World`; the world checks every effect."""

    ordering = "fcfs"
    routing = "single_node"

    def __init__(self) -> None:
        super().__init__()
        self.world = World(ordering=self.ordering, routing=self.routing)

    @initialize(connected=st.booleans())
    def some_nodes_are_there(self, connected: bool) -> None:
        for name in NODES if connected else ():
            self.world.publish(name)

    # --- stages ---------------------------------------------------------------------------------

    @rule(
        candidates=st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")]),
        external=st.booleans(),
        batch=st.booleans(),
        shared=st.booleans(),
        early_s=st.sampled_from([0.0, 0.0, 0.5]),
        deadline_s=st.none() | st.sampled_from([3.0, 30.0]),
    )
    def a_stage_arrives(
        self,
        candidates: Any,
        external: bool,
        batch: bool,
        shared: bool,
        early_s: float,
        deadline_s: float | None,
    ) -> None:
        world = self.world
        number = next(world.ids)
        running = [job_id for job_id, job in world.jobs.items() if job.running]
        job = running[number % len(running)] if running and not external else None
        stage = make_stage(
            f"s{number:04}",
            job or ("shared" if shared else None),
            candidates,
            world.now_s - early_s,
            external=external,
            service_class=ServiceClass.BATCH if batch else ServiceClass.INTERACTIVE,
        )
        if deadline_s is not None:
            stage = replace(stage, deadline_s=world.now_s + deadline_s)
        world.tell(arrival(stage))

    @precondition(lambda self: self.world.sent)
    @rule(some=some)
    def a_stage_starts(self, some: int) -> None:
        stage_id, sent = pick(list(self.world.sent.items()), some)
        if sent.started:
            self.world.expected_stale += 1
        sent.started = True
        self.world.first_byte[stage_id] = None
        self.world.tell(StageStarted(StageId(stage_id), sent.attempt))

    @precondition(lambda self: self.world.sent)
    @rule(some=some, tokens=st.integers(0, 500))
    def a_stage_progresses(self, some: int, tokens: int) -> None:
        world = self.world
        stage_id, sent = pick(list(world.sent.items()), some)
        known = next(view for view in world.core.in_flight() if view.stage_id == stage_id)
        world.expected_stale += tokens < known.output_tokens
        world.tokens[stage_id] = max(tokens, known.output_tokens)
        world.tell(StageProgressed(StageId(stage_id), sent.attempt, tokens))

    @precondition(lambda self: self.world.sent)
    @rule(
        some=some,
        outcome=st.sampled_from(
            [
                *(Outcome.FINISHED, Outcome.FINISHED, Outcome.FAILED, Outcome.FAILED),
                *(Outcome.INVALID, Outcome.PREEMPTED, Outcome.INTERRUPTED),
            ]
        ),
        tokens=st.none() | st.integers(0, 500),
    )
    def a_stage_ends(self, some: int, outcome: Outcome, tokens: int | None) -> None:
        world = self.world
        stage_id, sent = pick(list(world.sent.items()), some)
        del world.sent[stage_id]
        usage = None if tokens is None else Usage(50, tokens)
        world.tell(StageEnded(StageId(stage_id), sent.attempt, outcome, sent.started, usage, "why"))
        if sent.started or outcome in (Outcome.FINISHED, Outcome.INVALID):
            assert world.resolved[stage_id] is outcome

    @precondition(lambda self: any(not sent.started for sent in self.world.sent.values()))
    @rule(
        some=some,
        permanent=st.sampled_from([False, False, True]),
        retry_in_s=st.none() | st.sampled_from([0.0, 0.5, 20.0]),
    )
    def a_stage_is_refused(self, some: int, permanent: bool, retry_in_s: float | None) -> None:
        world = self.world
        fresh = [item for item in world.sent.items() if not item[1].started]
        stage_id, sent = pick(fresh, some)
        del world.sent[stage_id]
        world.tell(
            StageRefused(StageId(stage_id), sent.attempt, "no room", {}, permanent, retry_in_s)
        )

    @precondition(lambda self: self.world.live)
    @rule(some=some)
    def a_caller_goes_away(self, some: int) -> None:
        stage_id = pick(list(self.world.live), some)
        self.world.tell(StageCancelled(StageId(stage_id)))
        assert self.world.resolved[stage_id] is Outcome.CANCELLED

    @precondition(lambda self: self.world.live)
    @rule(some=some)
    def the_same_prediction_comes_again(self, some: int) -> None:
        stage_id = pick(list(self.world.live), some)
        q90 = self.world.q90.get(StageId(stage_id), 100)
        self.world.tell(PredictionArrived(StageId(stage_id), Prediction(10.0, float(q90))))

    @precondition(lambda self: self.world.live)
    @rule(some=some, q90=st.integers(10, 300))
    def a_better_prediction_comes(self, some: int, q90: int) -> None:
        self.world.predict(StageId(pick(list(self.world.live), some)), q90)

    # --- nodes and time -------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(list(NODES)),
        slots=st.none() | st.lists(st.integers(FAILED, 3), min_size=2, max_size=2),
        draining=st.sampled_from([False, False, False, True]),
    )
    def a_node_speaks(self, name: str, slots: list[int] | None, draining: bool) -> None:
        node = self.world.nodes[name]
        if slots is not None:
            node.slots = dict(zip(NODES[name], slots, strict=False))
        node.draining = draining
        self.world.publish(name)

    @precondition(lambda self: self.world.connected)
    @rule(some=some)
    def a_node_is_lost(self, some: int) -> None:
        self.world.lose(pick(list(self.world.connected), some))

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 6.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now_s += seconds

    @precondition(lambda self: self.world.fire_due())
    @rule()
    def timers_fire(self) -> None:
        for name in self.world.fire_due():
            if self.world.timers.get(name, self.world.now_s + 1) <= self.world.now_s:
                del self.world.timers[name]
                self.world.tell(TimerFired(TimerId(name)))

    # --- jobs -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.jobs) < 8)
    @rule(number=st.integers(0, len(WORKFLOWS) - 1))
    def a_job_is_submitted(self, number: int) -> None:
        workflow = WORKFLOWS[number]
        job_id = f"j{len(self.world.jobs)}"
        self.world.jobs[job_id] = FakeJob(workflow)
        self.world.tell(submission(workflow, job_id))

    @precondition(lambda self: any(job.preparing for job in self.world.jobs.values()))
    @rule(some=some, width=st.integers(0, 3))
    def a_step_is_prepared(self, some: int, width: int) -> None:
        jobs = [(job_id, job) for job_id, job in self.world.jobs.items() if job.preparing]
        job_id, job = pick(jobs, some)
        step, visit = pick(list(job.preparing), some)
        if job.workflow.steps[step].for_each is None:
            width = 1
        width = job.widths.setdefault((step, visit), width)  # rendering is a pure function
        del job.preparing[(step, visit)]
        self.world.tell(StepPrepared(JobId(job_id), step, visit, width))

    @precondition(lambda self: any(job.running for job in self.world.jobs.values()))
    @rule(some=some, repeat=st.booleans())
    def an_item_finishes(self, some: int, repeat: bool) -> None:
        job_id, job, ref = self.some_item(some)
        loops = job.workflow.steps[ref.step].repeat is not None
        result = StepResult(ref, job.running.pop(ref), repeat and loops)
        job.finished.append(result)
        self.world.tell(StepFinished(JobId(job_id), result))

    @precondition(lambda self: any(job.running for job in self.world.jobs.values()))
    @rule(some=some)
    def an_item_fails(self, some: int) -> None:
        job_id, job, ref = self.some_item(some)
        self.world.tell(StepFailed(JobId(job_id), ref, Outcome.FAILED, "bad luck"))
        assert job.status is JobStatus.FAILED

    def some_item(self, some: int) -> tuple[str, FakeJob, StepRef]:
        jobs = [(job_id, job) for job_id, job in self.world.jobs.items() if job.running]
        job_id, job = pick(jobs, some)
        return job_id, job, pick(list(job.running), some)

    @precondition(lambda self: any(j.status is JobStatus.RUNNING for j in self.world.jobs.values()))
    @rule(some=some)
    def a_job_is_cancelled(self, some: int) -> None:
        jobs = self.world.jobs
        running = [name for name, job in jobs.items() if job.status is JobStatus.RUNNING]
        job_id = pick(running, some)
        if self.world.core.job(JobId(job_id)) is None:
            self.world.expected_stale += 1  # submitted while closing: only the store knows it
            self.world.tell(JobCancelled(JobId(job_id)))
            return
        self.world.tell(JobCancelled(JobId(job_id)))
        assert jobs[job_id].status is JobStatus.CANCELLED
        assert not [s for s in self.world.live if self.world.stages[s].job_id == job_id]

    @precondition(lambda self: len(self.world.stages) > 15)
    @rule(drain=st.booleans())
    def the_coordinator_closes_and_starts_again(self, drain: bool) -> None:
        world = self.world
        world.tell(ShutdownRequested(drain))
        assert set(world.live) == set(world.sent)
        if not drain:
            assert not world.live
        late = make_stage(f"s{next(world.ids):04}", external=drain)
        effects = world.tell(arrival(late))
        assert len(effects) == 1
        for stage_id, sent in list(world.sent.items()):
            del world.sent[stage_id]
            outcome = Outcome.FINISHED if sent.started else Outcome.FAILED
            world.tell(StageEnded(StageId(stage_id), sent.attempt, outcome, sent.started))
        assert not world.live
        world.restart()

    @precondition(lambda self: len(self.world.stages) > 10)
    @rule()
    def the_coordinator_is_killed_and_starts_again(self) -> None:
        self.world.restart()

    # --- stale and impossible -------------------------------------------------------------------

    @rule(some=some)
    def late_events_are_counted_and_change_nothing(self, some: int) -> None:
        event = pick(self.stale_events(), some)
        core = self.world.core
        before, stale = fingerprint(core), core.counters.stale
        assert core.handle(event, self.world.now_s) == []
        assert core.counters.stale == stale + 1
        core._tables.counters.stale -= 1
        assert fingerprint(core) == before
        core._tables.counters.stale += 1
        self.world.expected_stale += 1

    def stale_events(self) -> list[CoordinatorEvent]:
        world = self.world
        events: list[CoordinatorEvent] = [
            StageCancelled(StageId("never-seen")),
            StageEnded(StageId("never-seen"), 1, Outcome.FAILED, False),
            StepFinished(JobId("never-seen"), StepResult(StepRef("one"))),
            JobCancelled(JobId("never-seen")),
            ToolsRan(JobId("never-seen"), "one", 1.0),
            NodeLost(NodeName("never-seen"), "gone"),
            TimerFired(TimerId("never-set")),
        ]
        events.extend(node_says(make_snapshot(name, epoch=0)) for name in world.connected)
        for stage_id in list(world.resolved)[-4:]:
            events.append(StageEnded(StageId(stage_id), 1, Outcome.FINISHED, True))
            events.append(StageStarted(StageId(stage_id), 1))
            events.append(StageRefused(StageId(stage_id), 1, "late"))
            events.append(StageCancelled(StageId(stage_id)))
        for stage_id in world.live:
            old = world.attempts[stage_id] - (stage_id in world.sent)
            if old >= 1:
                events.append(StageEnded(StageId(stage_id), old, Outcome.FAILED, False))
                events.append(StageRefused(StageId(stage_id), old, "late"))
                events.append(StageProgressed(StageId(stage_id), old, 1))
        for job_id, job in world.jobs.items():
            if world.core.job(JobId(job_id)) is not None and job.status is JobStatus.RUNNING:
                events.append(submission(job.workflow, job_id))
                events += [StepFinished(JobId(job_id), result) for result in job.finished[-2:]]
                for ref in job.running:
                    events.append(StepPrepared(JobId(job_id), ref.step, ref.visit, 9))
        return events

    @rule(some=some)
    def impossible_events_raise_and_change_nothing(self, some: int) -> None:
        event = pick(self.impossible_events(), some)
        core = self.world.core
        before = fingerprint(core)
        with pytest.raises(InvariantViolation):
            core.handle(event, self.world.now_s)
        assert fingerprint(core) == before

    def impossible_events(self) -> list[CoordinatorEvent]:
        world = self.world
        events: list[CoordinatorEvent] = []
        for stage_id in world.live:
            beyond = world.attempts[stage_id] + 1
            events.append(StageStarted(StageId(stage_id), beyond))
            events.append(StageEnded(StageId(stage_id), beyond, Outcome.FINISHED, True))
            events.append(StageRefused(StageId(stage_id), beyond, "never sent"))
            events.append(arrival(world.stages[stage_id]))
        for stage_id, sent in world.sent.items():
            if sent.started:
                events.append(StageRefused(StageId(stage_id), sent.attempt, "too late"))
        for job_id, job in world.jobs.items():
            if world.core.job(JobId(job_id)) is None or job.status is not JobStatus.RUNNING:
                continue
            events.append(step_done("no-such-step", job=job_id))
            for step, visit in job.preparing:
                events.append(StepPrepared(JobId(job_id), step, visit + 1, 1))
                events.append(step_done(step, visit, job=job_id))
            for ref, width in job.running.items():
                events.append(step_done(ref.step, ref.visit, width, width, job=job_id))
                events.append(step_done(ref.step, ref.visit, ref.item, width + 1, job=job_id))
        return events or [StageArrivedForNodes()]

    # --- always ---------------------------------------------------------------------------------

    @invariant()
    def views_agree_with_the_ledger(self) -> None:
        world, core = self.world, self.world.core
        assert {view.stage_id for view in core.in_flight()} == set(world.sent)
        assert {view.stage_id for view in core.queued()} == set(world.live) - set(world.sent)
        assert core.num_in_flight == len(world.sent)
        assert core.num_queued == len(world.live) - len(world.sent)
        counters = core.counters
        assert counters.arrived == len(world.stages)
        assert sum(counters.resolved.values()) == len(world.resolved)

    @invariant()
    def a_running_job_has_something_to_do(self) -> None:
        for job_id, job in self.world.jobs.items():
            if job.status is JobStatus.RUNNING and self.world.core.job(JobId(job_id)) is not None:
                assert job.preparing or job.running


class StageArrivedForNodes:
    """An event that no coordinator is ever told."""


TestCoordinatorLife = CoordinatorLife.TestCase
TestCoordinatorLife.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


class LifeByDeadlines(CoordinatorLife):
    """The same under a policy that lets stages lapse."""

    ordering = "workflow_slo"


class LifeByRemainingTime(CoordinatorLife):
    """The same under a policy that learns from what stages took."""

    ordering = "workflow_srtf"


class LifeAcrossClusters(CoordinatorLife):
    """The same under a policy that waits for a place while another is open."""

    routing = "maestro"


_FEWER = settings(max_examples=20, stateful_step_count=60, deadline=None)
TestLifeByDeadlines = LifeByDeadlines.TestCase
TestLifeByDeadlines.settings = _FEWER
TestLifeByRemainingTime = LifeByRemainingTime.TestCase
TestLifeByRemainingTime.settings = _FEWER
TestLifeAcrossClusters = LifeAcrossClusters.TestCase
TestLifeAcrossClusters.settings = _FEWER
