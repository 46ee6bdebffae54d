"""The tables of `CoordinatorCore`: stages and jobs, and the dated views of them that hosts show.

`StageState` and `JobState` have one owner, the core. Policies are handed them to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from maestroctl.domain.ids import JobId, ModelName, NodeName, StageId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import ServiceClass, StageDescriptor
from maestroctl.scheduler.routing.fleet_state import Place
from maestroctl.scheduler.workflow_progress import WorkflowProgress

MAX_ROLES = 64
"""Roles counted per job; a caller that invents a role per request must not grow memory."""


class StageStatus(Enum):
    """Where a stage is: in exactly one of these."""

    QUEUED = "queued"
    """In the heap of its queue class."""
    PARKED = "parked"
    """Pausing before a retry on the only node there is."""
    IN_FLIGHT = "in_flight"
    """Sent to a node, no byte of the answer yet."""
    STARTED = "started"
    """The answer has begun."""
    OVER = "over"
    """Resolved, and in no table; something lazy may still point at it."""


QueueKey = tuple[
    tuple[ModelName, ...],
    tuple[tuple[NodeName, ModelName], ...],
    NodeName | None,
    ServiceClass,
    bool,
    bool,
]
"""Models, excluded places, node to avoid, service class, external, late: stages that agree on all
of them can go to the same places, so only the first of them need be looked at. Late ones are apart
because they have a share of the dispatches of their own."""

AGED_RANK = -1
"""Of the oldest stage of a class in its turn, once it has waited for the limit; never its own."""
LATE_RANK = 3
"""The oldest of a class of late stages has one less in its turn, once it has waited that long."""


class StageState:
    """One live stage.

    Attributes:
        models: which of its candidates may serve it, as the model choice decided.
        key: order, lower first; computed when it became ready, never while it waits.
        rank: 1, or 0 once it was given back after its turn: then it goes before the others;
            `LATE_RANK` once its ordering policy found it late: then it goes after them.
        path_s: execution and tool seconds of its job's longest branch before it.
        excluded: places that can never take it. `avoid`: node on which its last attempt failed.
        attempt: dispatches so far. `retries`: FAILED ones; `preemptions`: aborted for memory.
        queued_s: since when it has waited for a place; the first time counts.
        entry: number of its live heap entry. `queue_key`: the class it is queued in.
        wake_s: predicted wait for its engine when it was dispatched.
        is_kept_out: its records say that slots were free, and kept for interactive stages.
        is_expiring: it has an entry in the heap of queue deadlines.
    """

    __slots__ = (
        "attempt",
        "avoid",
        "booked_tokens",
        "dispatched_s",
        "entry",
        "excluded",
        "is_expiring",
        "is_kept_out",
        "job",
        "key",
        "last_reason",
        "models",
        "output_tokens",
        "path_s",
        "place",
        "prediction",
        "preemptions",
        "queue_key",
        "queued_s",
        "rank",
        "retries",
        "seq",
        "stage",
        "stage_id",
        "status",
        "wake_s",
    )

    def __init__(
        self, stage: StageDescriptor, prediction: Prediction, job: JobState, key: float
    ) -> None:
        self.stage = stage
        self.stage_id = stage.stage_id
        self.prediction = prediction
        self.job = job
        self.key = key
        self.rank = 1
        self.path_s = 0.0
        self.models = stage.candidates
        self.excluded: tuple[tuple[NodeName, ModelName], ...] = ()
        self.avoid: NodeName | None = None
        self.status = StageStatus.QUEUED
        self.attempt = 0
        self.retries = 0
        self.preemptions = 0
        self.place: Place | None = None
        self.seq = 0
        self.booked_tokens = 0
        self.output_tokens = 0
        self.queued_s: float | None = None
        self.dispatched_s = 0.0
        self.wake_s = 0.0
        self.entry = 0
        self.queue_key: QueueKey | None = None
        self.is_expiring = False
        self.is_kept_out = False
        self.last_reason = ""

    @property
    def is_waiting(self) -> bool:
        """Held here, not at a node."""
        return self.status is StageStatus.QUEUED or self.status is StageStatus.PARKED

    @property
    def as_chosen(self) -> StageDescriptor:
        """The stage with the models that were chosen in place of its candidates: orders price a
        stage at its first candidate."""
        stage = self.stage
        return stage if stage.candidates == self.models else replace(stage, candidates=self.models)

    def class_key(self) -> QueueKey:
        """The queue class it belongs to now."""
        stage = self.stage
        return (
            self.models,
            self.excluded,
            self.avoid,
            stage.service_class,
            stage.external,
            self.rank == LATE_RANK,
        )


class JobState:
    """One live job: a workflow run (`progress` set), or stages that share a job id.

    Attributes:
        stages: its live stages.
        num_stages: stages that ever arrived. `roles`: the same per role.
        attained_s: execution and tool seconds so far; no queueing, no wakes.
        attained_tokens: output tokens so far.
        homes: role -> (name of the place, prompt tokens) of its last stage; None = none was sent.
        is_over: finished; only stages of outside callers may still use it.
    """

    __slots__ = (
        "arrival_s",
        "attained_s",
        "attained_tokens",
        "deadline_s",
        "homes",
        "idle_since_s",
        "is_over",
        "job_id",
        "num_stages",
        "progress",
        "roles",
        "service_class",
        "stages",
        "workflow",
    )

    def __init__(
        self,
        job_id: JobId,
        workflow: str,
        service_class: ServiceClass,
        arrival_s: float,
        deadline_s: float | None,
    ) -> None:
        self.job_id = job_id
        self.workflow = workflow
        self.service_class = service_class
        self.arrival_s = arrival_s
        self.deadline_s = deadline_s
        self.progress: WorkflowProgress | None = None
        self.stages: dict[StageId, StageState] = {}
        self.num_stages = 0
        self.roles: dict[str, int] = {}
        self.attained_s = 0.0
        self.attained_tokens = 0
        self.homes: dict[str, tuple[str, int]] | None = None
        self.idle_since_s = arrival_s
        self.is_over = False

    def add(self, stage: StageState) -> None:
        """A stage of the job arrived."""
        self.stages[stage.stage_id] = stage
        self.num_stages += 1
        role = stage.stage.role
        if role in self.roles or len(self.roles) < MAX_ROLES:
            self.roles[role] = self.roles.get(role, 0) + 1


@dataclass(slots=True)
class CoordinatorCounters:
    """What happened since the start. Every stage that arrived is queued, in flight or resolved."""

    arrived: int = 0
    dispatched: int = 0
    refused: int = 0
    retried: int = 0
    preempted: int = 0
    stale: int = 0
    resolved: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))


@dataclass(frozen=True, slots=True)
class StageView:
    """A live stage as a host shows it; times are the core's."""

    stage_id: StageId
    job_id: JobId
    workflow: str
    step: str
    role: str
    service_class: ServiceClass
    status: StageStatus
    models: tuple[ModelName, ...]
    node: NodeName | None
    attempt: int
    arrival_s: float
    queued_s: float | None
    dispatched_s: float | None
    output_tokens: int
    last_reason: str


@dataclass(frozen=True, slots=True)
class JobView:
    """A live job as a host shows it. `steps`: (step, status, visit, items left)."""

    job_id: JobId
    workflow: str
    service_class: ServiceClass
    arrival_s: float
    deadline_s: float | None
    is_workflow: bool
    num_stages: int
    roles: Mapping[str, int]
    attained_s: float
    attained_tokens: int
    live_stages: tuple[StageId, ...]
    steps: tuple[tuple[str, str, int, int], ...]


def view_stage(state: StageState) -> StageView:
    """Frozen copy of a stage."""
    stage, place = state.stage, state.place
    return StageView(
        stage_id=state.stage_id,
        job_id=stage.job_id,
        workflow=stage.workflow,
        step=stage.place,
        role=stage.role,
        service_class=stage.service_class,
        status=state.status,
        models=state.models if place is None else (place.model,),
        node=None if place is None else place.node.name,
        attempt=state.attempt,
        arrival_s=stage.arrival_s,
        queued_s=state.queued_s,
        dispatched_s=None if place is None else state.dispatched_s,
        output_tokens=state.output_tokens,
        last_reason=state.last_reason,
    )


def view_job(job: JobState) -> JobView:
    """Frozen copy of a job."""
    steps = () if job.progress is None else job.progress.statuses()
    return JobView(
        job_id=job.job_id,
        workflow=job.workflow,
        service_class=job.service_class,
        arrival_s=job.arrival_s,
        deadline_s=job.deadline_s,
        is_workflow=job.progress is not None,
        num_stages=job.num_stages,
        roles=dict(job.roles),
        attained_s=job.attained_s,
        attained_tokens=job.attained_tokens,
        live_stages=tuple(job.stages),
        steps=tuple(
            (name, status.name.lower(), visit, left) for name, status, visit, left in steps
        ),
    )
