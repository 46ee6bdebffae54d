"""`CoordinatorCore`: the coordinator's brain. Jobs make stages, stages are ordered and placed.

Theory of operation. One entry point, `handle`, changes the core; it is handed the time and every
fact, and returns what is to be done. A step of a workflow becomes ready (`workflow_progress`), the
host renders it and sends its calls as stages; a stage gets its place in the order (`ordering`), a
model (`routing.model_choice`) and a node (`routing.pipeline`), or waits. The node may refuse; that
is an event like any other. Every stage ends in one `ResolveStage`, every submitted job in one
`FinishJob` or, when the coordinator is stopped, in neither: then it is resumed at the next start.

The parts, each the one owner of its transitions: `coordinator_job_flow` (life of a workflow run),
`coordinator_stages` (life of a stage), `coordinator_dispatch` (slots and order of dispatch),
`coordinator_waiting` (queue and patience), `coordinator_jobs` (which jobs are alive),
`coordinator_tables` (the data, and its rules).

Cost. An event is O(log n) in the number of queued stages; only what must touch every stage (the
last node of many lost, a shutdown) is linear, once.

An event that was true of something that is over (a stage, an attempt, a visit, a job) is *stale*:
counted and nothing else. One that cannot be true raises `InvariantViolation` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.ids import ClusterName, JobId, ModelName, NodeName
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.domain.stage import StageDescriptor
from maestroctl.errors import InvariantViolation
from maestroctl.estimate.output_quantile import OutputQuantile
from maestroctl.scheduler.coordinator_dispatch import Dispatcher
from maestroctl.scheduler.coordinator_job_flow import JobFlow
from maestroctl.scheduler.coordinator_jobs import JobTable
from maestroctl.scheduler.coordinator_stages import StageFlow
from maestroctl.scheduler.coordinator_state import (
    CoordinatorCounters,
    JobView,
    StageView,
    view_job,
    view_stage,
)
from maestroctl.scheduler.coordinator_tables import CoordinatorTables, check_tables
from maestroctl.scheduler.coordinator_timers import Out, Timers
from maestroctl.scheduler.coordinator_waiting import WaitingRoom
from maestroctl.scheduler.effects import CoordinatorEffect
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    JobCancelled,
    JobSubmitted,
    NodeLost,
    NodeSnapshotReceived,
    PredictionArrived,
    ShutdownRequested,
    StageArrived,
    StageCancelled,
    StageEnded,
    StageProgressed,
    StageRefused,
    StageStarted,
    StepFailed,
    StepFinished,
    StepPrepared,
    TimerFired,
    ToolsRan,
)
from maestroctl.scheduler.interactive_reserve import InteractiveReserves
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.ordering.costs import Costs
from maestroctl.scheduler.registry import (
    make_look_ahead,
    make_model_choice,
    make_ordering,
    make_routing,
)
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.scheduler.routing.look_ahead import LookAhead
from maestroctl.scheduler.routing.placement_score import Weights


class CoordinatorCore:
    """Decides for a whole fleet.

    Args:
        fleet: nodes, models and `[policy]`.
        epoch: of this coordinator; higher than any before it on the same state.
        max_queued: stages that may wait here; past that new ones are rejected.
        look_ahead: in place of the one that `[policy]` names.
        ordering: in place of the policy that `[policy]` names.

    Raises:
        ConfigError: an unknown policy name.
    """

    def __init__(
        self,
        fleet: FleetSpec,
        epoch: int,
        *,
        max_queued: int = 100_000,
        look_ahead: LookAhead | None = None,
        ordering: OrderingPolicy | None = None,
    ) -> None:
        policy = fleet.policy
        self._ordering = ordering or make_ordering(policy)
        self._model_choice = make_model_choice(policy)
        self._tables = tables = CoordinatorTables(
            FleetState(epoch, Weights.of(policy), _declared_rtts(fleet)), JobTable(self._job_gone)
        )
        tables.on_over = self._model_choice.on_stage_over
        self._costs = Costs(tables.fleet, tables.profile)
        self._ordering.use(self._costs)
        self._timers = Timers()
        self._dispatcher = Dispatcher(
            tables,
            self._timers,
            make_routing(policy),
            self._ordering,
            look_ahead or make_look_ahead(policy),
            epoch,
            policy.max_wait_s,
            OutputQuantile(policy.admission_quantile),
        )
        self._waiting = WaitingRoom(
            fleet, tables, self._timers, self._dispatcher, self._model_choice, max_queued
        )
        self._reserves = InteractiveReserves(tables.fleet, enabled=self._ordering.reserves_slots)
        self._stages = StageFlow(
            tables,
            self._dispatcher,
            self._waiting,
            self._ordering,
            self._model_choice,
            self._costs,
            self._reserves,
        )
        self._jobs = JobFlow(tables, self._stages, self._dispatcher, self._ordering)
        self._on = self._handlers()

    def handle(self, event: CoordinatorEvent, now_s: float) -> list[CoordinatorEffect]:
        """Take one event in; what is to be done, in order.

        Args:
            event: something that is true.
            now_s: the core's time; never falls from one call to the next.

        Raises:
            InvariantViolation: the event cannot be true; nothing was changed.
        """
        out: list[CoordinatorEffect] = []
        on = self._on.get(type(event))
        if on is None:
            raise InvariantViolation(f"the coordinator is not told {type(event).__name__}")
        on(event, now_s, out)
        return out

    def has_room(self, stage: StageDescriptor) -> bool:
        """Whether the stage, told now, would be sent at once: one model, none waiting, a slot."""
        tables, models = self._tables, stage.candidates
        return (
            len(models) == 1
            and not tables.queue.serving(models[0])
            and bool(tables.fleet.open_places(models[0], stage.service_class))
        )

    def _handlers(self) -> Mapping[type, Callable[[Any, float, Out], None]]:
        jobs, stages = self._jobs, self._stages
        return {
            JobSubmitted: jobs.submitted,
            StepPrepared: jobs.step_prepared,
            StepFinished: jobs.step_finished,
            StepFailed: jobs.step_failed,
            ToolsRan: jobs.tools_ran,
            JobCancelled: jobs.cancelled,
            StageArrived: stages.arrived,
            PredictionArrived: stages.predicted,
            StageStarted: lambda event, now_s, _out: stages.started(event, now_s),
            StageProgressed: lambda event, _now_s, _out: stages.progressed(event),
            StageEnded: stages.ended,
            StageRefused: stages.refused,
            StageCancelled: stages.cancelled,
            NodeSnapshotReceived: self._snapshot_received,
            NodeLost: self._node_lost,
            TimerFired: self._timer_fired,
            ShutdownRequested: self._shutdown_requested,
        }

    # --- reading --------------------------------------------------------------------------------

    @property
    def counters(self) -> CoordinatorCounters:
        """A copy of the counters."""
        counters = self._tables.counters
        return replace(counters, resolved=dict(counters.resolved))

    @property
    def num_queued(self) -> int:
        """Stages that wait here."""
        return self._tables.num_waiting

    @property
    def num_in_flight(self) -> int:
        """Stages sent to nodes and not over."""
        return len(self._tables.stages) - self._tables.num_waiting

    def queued(self) -> tuple[StageView, ...]:
        """Waiting stages in dispatch order, parked ones last: O(n log n)."""
        tables = self._tables
        return tuple(view_stage(stage) for stage in [*tables.queue, *tables.parked.values()])

    def in_flight(self) -> tuple[StageView, ...]:
        """Stages at nodes, per node in the order of their dispatch."""
        on_node = self._tables.on_node
        return tuple(view_stage(s) for stages in on_node.values() for s in stages.values())

    def nodes(self) -> tuple[NodeSnapshot, ...]:
        """Last snapshot of every connected node."""
        return tuple(node.snapshot for node in self._tables.fleet.nodes.values())

    def kept_slots(self) -> dict[tuple[ModelName, NodeName], int]:
        """How many slots each place keeps for interactive stages, where it keeps any."""
        return {
            (place.model, place.node.name): place.reserved
            for node in self._tables.fleet.nodes.values()
            for place in node.places.values()
            if place.reserved
        }

    def job(self, job_id: JobId) -> JobView | None:
        """A live job; None when it is unknown, forgotten or over."""
        job = self._tables.jobs.get(job_id)
        return None if job is None else view_job(job)

    def next_position(self, job_id: JobId, role: str) -> tuple[int, int]:
        """(position, invocation index of `role`) of the next stage of the job."""
        job = self._tables.jobs.get(job_id)
        return (0, 0) if job is None else (job.num_stages, job.roles.get(role, 0))

    def story(self, subject: str) -> tuple[str, ...]:
        """What happened to a stage or job, oldest first, as far as it is remembered."""
        return self._tables.story(subject)

    def validate(self) -> None:
        """Check every table against the others, and that nothing waits that could go.

        Raises:
            InvariantViolation: names the rule that is broken.
        """
        check_tables(self._tables)
        self._dispatcher.check_pumped()

    # --- nodes, timers, shutdown ----------------------------------------------------------------

    def _job_gone(self, job_id: JobId) -> None:
        self._tables.profile.job_finished(job_id)
        self._ordering.on_job_gone(job_id)
        self._model_choice.on_job_gone(job_id)

    def _snapshot_received(self, event: NodeSnapshotReceived, now_s: float, out: Out) -> None:
        fleet = self._tables.fleet
        snapshot = event.snapshot
        if fleet.is_outdated(snapshot):
            self._tables.counters.stale += 1
            return
        changed = fleet.apply(snapshot, event.rtt_s, now_s)
        places = fleet.nodes[snapshot.node].places
        self._dispatcher.node_spoke(places.values(), out)
        if changed:
            self._reserves.places_replaced()
            self._waiting.rehome(now_s, out)
            self._dispatcher.pump_all(now_s, out)
        else:
            self._reserves.places_changed(places.values())
            self._dispatcher.pump_models(places, now_s, out)

    def _node_lost(self, event: NodeLost, now_s: float, out: Out) -> None:
        if event.node not in self._tables.fleet.nodes:
            self._tables.counters.stale += 1
            return
        self._stages.node_lost(event.node, event.reason, now_s, out)

    def _timer_fired(self, event: TimerFired, now_s: float, out: Out) -> None:
        action = self._timers.take(event.timer_id)
        if action is None:
            self._tables.counters.stale += 1
            return
        action(now_s, out)

    def _shutdown_requested(self, event: ShutdownRequested, now_s: float, out: Out) -> None:
        self._tables.closing = True
        self._stages.close(not event.drain, now_s, out)


def _declared_rtts(fleet: FleetSpec) -> dict[ClusterName, float]:
    """Round trips that a person stated; the others are measured."""
    return {c.name: c.rtt_s for c in fleet.clusters.values() if c.rtt_s is not None}
