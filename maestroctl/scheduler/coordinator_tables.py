"""What `CoordinatorCore` knows, in one place, and the rules its tables keep.

`CoordinatorTables` is changed by the core's parts and by nobody else. `check_tables` says whether
the tables agree with each other; tests run it after every event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from maestroctl.domain.ids import NodeName, StageId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.coordinator_jobs import MAX_IDLE_JOBS, JobTable
from maestroctl.scheduler.coordinator_state import CoordinatorCounters, StageState, StageStatus
from maestroctl.scheduler.effects import CoordinatorEffect, ResolveStage
from maestroctl.scheduler.execution_profile import ExecutionProfile
from maestroctl.scheduler.ordering.stage_queue import StageQueue
from maestroctl.scheduler.routing.fleet_state import FleetState

STORY_LENGTH = 10_000
"""Lines of story kept, of all stages and jobs together."""
SHUTTING_DOWN = "the coordinator is shutting down"


@dataclass(slots=True)
class CoordinatorTables:
    """Every stage is in `stages`, and in exactly one of `queue`, `parked` and `on_node`.

    Attributes:
        on_node: stages sent to a node, in the order of their dispatch.
        profile: what usually follows a stage (Maestro Eq 8).
        seq: last command number of this epoch.
        closing: `ShutdownRequested` came; nothing new is taken.
        on_over: told of every stage that is resolved, while its job still knows it.
        log: (time, stage or job, what happened, detail), oldest first; formatted only when read.
    """

    fleet: FleetState
    jobs: JobTable
    queue: StageQueue = field(default_factory=StageQueue)
    stages: dict[StageId, StageState] = field(default_factory=dict)
    parked: dict[StageId, StageState] = field(default_factory=dict)
    on_node: dict[NodeName, dict[StageId, StageState]] = field(default_factory=dict)
    counters: CoordinatorCounters = field(default_factory=CoordinatorCounters)
    profile: ExecutionProfile = field(default_factory=ExecutionProfile)
    seq: int = 0
    closing: bool = False
    on_over: Callable[[StageState], None] = field(default=lambda _stage: None)
    log: deque[tuple[float, str, str, object]] = field(
        default_factory=lambda: deque(maxlen=STORY_LENGTH)
    )

    @property
    def num_waiting(self) -> int:
        """Stages held here."""
        return self.queue.num_queued + len(self.parked)

    def resolve(
        self,
        stage: StageState,
        outcome: Outcome,
        reason: str,
        now_s: float,
        out: list[CoordinatorEffect],
        retry_after_s: float | None = None,
    ) -> None:
        """The stage, which is queued, parked or sent nowhere any more, is over."""
        del self.stages[stage.stage_id]
        stage.status = StageStatus.OVER
        self.on_over(stage)
        self.counters.resolved[outcome] += 1
        job = stage.job
        del job.stages[stage.stage_id]
        if not job.stages:
            self.jobs.left(job, now_s)
        self.log.append((now_s, stage.stage_id, outcome.value, reason))
        out.append(ResolveStage(stage.stage_id, outcome, reason, retry_after_s))

    def story(self, subject: str) -> tuple[str, ...]:
        """What happened to a stage or job, oldest first, as far as it is remembered."""
        return tuple(
            f"{at_s:.6f} {what}: {detail}" for at_s, who, what, detail in self.log if who == subject
        )


def check_tables(tables: CoordinatorTables) -> None:
    """Raise when two tables contradict each other.

    Raises:
        InvariantViolation: names the rule.
    """
    for problem in (
        _each_stage_in_one_place(tables)
        or _reservations_agree(tables)
        or _queue_agrees(tables)
        or _jobs_agree(tables)
        or _counters_agree(tables)
    ):
        raise InvariantViolation(f"coordinator tables: {problem}")


def _each_stage_in_one_place(tables: CoordinatorTables) -> list[str]:
    queued = {stage.stage_id: stage for stage in tables.queue}
    sent = {sid: stage for stages in tables.on_node.values() for sid, stage in stages.items()}
    problems: list[str] = []
    if len(queued) != tables.queue.num_queued:
        problems.append(f"{len(queued)} queued stages, {tables.queue.num_queued} counted")
    for stage_id, stage in tables.stages.items():
        places = [
            stage.status is StageStatus.QUEUED and stage_id in queued,
            stage.status is StageStatus.PARKED and stage_id in tables.parked,
            stage.status in (StageStatus.IN_FLIGHT, StageStatus.STARTED) and stage_id in sent,
        ]
        found = (stage_id in queued) + (stage_id in tables.parked) + (stage_id in sent)
        if sum(places) != 1 or found != 1:
            problems.append(f"stage {stage_id} ({stage.status.value}) is in {found} places")
        if (stage.place is None) != stage.is_waiting:
            problems.append(f"stage {stage_id} ({stage.status.value}) has place {stage.place}")
    if len(queued) + len(tables.parked) + len(sent) != len(tables.stages):
        problems.append("a stage is queued, parked or sent but not known")
    return problems


def _reservations_agree(tables: CoordinatorTables) -> list[str]:
    problems: list[str] = []
    for name, stages in tables.on_node.items():
        if stages and name not in tables.fleet.nodes:
            problems.append(f"{len(stages)} stages on node {name}, which is not connected")
    for name, node in tables.fleet.nodes.items():
        mine = list(tables.on_node.get(name, {}).values())
        if node.in_flight != len(mine):
            problems.append(f"node {name}: {node.in_flight} reserved, {len(mine)} sent")
        if not set(node.unapplied) <= {stage.seq for stage in mine}:
            problems.append(f"node {name}: an unapplied reservation has no stage")
        for model, place in node.places.items():
            here = [stage for stage in mine if stage.place is place]
            if place.in_flight != len(here) or place.tokens != sum(s.booked_tokens for s in here):
                problems.append(f"{place.name}: {place.in_flight} reserved, {len(here)} sent")
            batch = sum(stage.stage.service_class is ServiceClass.BATCH for stage in here)
            if place.num_batch != batch:
                problems.append(f"{place.name}: {place.num_batch} batch stages, {batch} sent")
            if tables.fleet.places(model).get(name) is not place:
                problems.append(f"{place.name} is not indexed")
            for service_class in ServiceClass:
                indexed = tables.fleet.open_places(model, service_class).get(name) is place
                if place.is_open_to(service_class) != indexed:
                    problems.append(f"{place.name}: open to {service_class}, the index disagrees")
    return problems


def _queue_agrees(tables: CoordinatorTables) -> list[str]:
    problems: list[str] = []
    for key, queue_class in tables.queue.classes().items():
        stages = queue_class.stages()
        if len(stages) != queue_class.num_live or not stages:
            problems.append(f"class {key}: {len(stages)} live, {queue_class.num_live} counted")
        if any(stage.queue_key != key or stage.class_key() != key for stage in stages):
            problems.append(f"class {key} holds a stage of another class")
        homeless = next(tables.fleet.usable(queue_class.models, key[1]), None) is None
        if homeless != (queue_class.homeless_since_s is not None):
            problems.append(f"class {key}: homeless is {homeless}, the class disagrees")
        problems.extend(
            f"class {key} is not indexed under {model}"
            for model in queue_class.models
            if tables.queue.serving(model).get(key) is not queue_class
        )
    return problems


def _jobs_agree(tables: CoordinatorTables) -> list[str]:
    problems: list[str] = []
    idle = tables.jobs.idle()
    for stage in tables.stages.values():
        job = tables.jobs.get(stage.stage.job_id)
        if job is not stage.job or job.stages.get(stage.stage_id) is not stage:
            problems.append(f"stage {stage.stage_id} is not in the table of its job")
    for job in tables.jobs:
        if any(tables.stages.get(stage_id) is not s for stage_id, s in job.stages.items()):
            problems.append(f"job {job.job_id} holds a stage that is over")
        if (job.job_id in idle) != (job.progress is None and not job.stages):
            problems.append(f"job {job.job_id}: idle or not, the tables disagree")
        if job.progress is not None and job.progress.is_finished:
            problems.append(f"job {job.job_id} has finished every step and still runs")
    if len(idle) > MAX_IDLE_JOBS:
        problems.append(f"{len(idle)} idle jobs are kept")
    return problems


def _counters_agree(tables: CoordinatorTables) -> list[str]:
    counters = tables.counters
    resolved = sum(counters.resolved.values())
    if counters.arrived != resolved + len(tables.stages):
        return [f"{counters.arrived} arrived, {resolved} resolved, {len(tables.stages)} live"]
    return []
