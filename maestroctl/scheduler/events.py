"""What the cores are told: past tense, already true, everything needed inside.

Times named `now_s` are handed to ``handle`` and are not repeated here. `external` things (bodies,
prompts, outputs) never enter a core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from maestroctl.domain.engine import EngineReadings, EngineStatus, ResidencyTier
from maestroctl.domain.ids import (
    DeviceName,
    EngineId,
    JobId,
    ModelName,
    NodeName,
    StageId,
    TimerId,
)
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.domain.stage import ServiceClass, StageDescriptor
from maestroctl.domain.workflow import WorkflowSpec

# --- CoordinatorCore: jobs ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepRef:
    """One run of a step: `visit` counts loop rounds from 1, `item` fan-out items from 0."""

    step: str
    visit: int = 1
    item: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """A finished run of a step, as the store remembers it.

    Attributes:
        num_items: fan-out width decided when the step was prepared (1 without `for_each`).
        repeat: its `until` did not hold: go back. Always False without `repeat`.
    """

    ref: StepRef
    num_items: int = 1
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A workflow run begins, or resumes with what it had finished before a restart."""

    job_id: JobId
    workflow: WorkflowSpec
    service_class: ServiceClass
    arrival_s: float
    deadline_s: float | None = None
    finished: tuple[StepResult, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPrepared:
    """The host rendered the step: it runs `num_items` times (0 = nothing to do, it is finished)."""

    job_id: JobId
    step: str
    visit: int
    num_items: int = 1


@dataclass(frozen=True, slots=True)
class StepFinished:
    """One run of a step ended well, tool rounds included."""

    job_id: JobId
    result: StepResult


@dataclass(frozen=True, slots=True)
class StepFailed:
    """One run of a step cannot end well; the job fails with `reason`."""

    job_id: JobId
    ref: StepRef
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class ToolsRan:
    """Tool calls of a job took `seconds`; part of attained service and of Eq 8."""

    job_id: JobId
    step: str
    seconds: float


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """Somebody cancelled the job."""

    job_id: JobId
    reason: str = "cancelled"


# --- CoordinatorCore: stages --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageArrived:
    """A stage is ready to run. Its job may be unknown: then it is a job of its own."""

    stage: StageDescriptor
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class PredictionArrived:
    """A better prediction for a stage that still waits or runs."""

    stage_id: StageId
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class StageStarted:
    """The first byte of the answer came from the node."""

    stage_id: StageId
    attempt: int


@dataclass(frozen=True, slots=True)
class StageProgressed:
    """The stage has produced `output_tokens` so far."""

    stage_id: StageId
    attempt: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class StageEnded:
    """The attempt on a node ended; before its first byte a FAILED one may be retried once.

    Attributes:
        started: at least one byte of the answer had come.
        usage: exact counts; None when the engine never said.
        reason: for people and records.
        tool_called: the answer asked for a tool; None = not known.
    """

    stage_id: StageId
    attempt: int
    outcome: Outcome
    started: bool
    usage: Usage | None = None
    reason: str = ""
    tool_called: bool | None = None


@dataclass(frozen=True, slots=True)
class StageRefused:
    """The node did not take the stage.

    Attributes:
        shortfall_bytes: what was missing per device; empty when memory was not the reason.
        permanent: this node can never take it.
        retry_in_s: the node's hint; None = when its snapshot changes.
    """

    stage_id: StageId
    attempt: int
    reason: str
    shortfall_bytes: Mapping[DeviceName, int] = field(default_factory=dict)
    permanent: bool = False
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class StageCancelled:
    """The caller went away."""

    stage_id: StageId


# --- CoordinatorCore: nodes ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeSnapshotReceived:
    """A node said what it looks like; also how a node joins or returns."""

    snapshot: NodeSnapshot
    rtt_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The connection to a node is gone; its stages end as FAILED by their own events."""

    node: NodeName
    reason: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The answer to `SetTimer`, to either core."""

    timer_id: TimerId


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """Either core: take nothing new. `drain` lets what runs finish, else it is interrupted."""

    drain: bool


CoordinatorEvent = (
    JobSubmitted
    | StepPrepared
    | StepFinished
    | StepFailed
    | ToolsRan
    | JobCancelled
    | StageArrived
    | PredictionArrived
    | StageStarted
    | StageProgressed
    | StageEnded
    | StageRefused
    | StageCancelled
    | NodeSnapshotReceived
    | NodeLost
    | TimerFired
    | ShutdownRequested
)

# --- NodeCore -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageOffered:
    """The coordinator offers a stage.

    Attributes:
        epoch, seq: of the coordinator's command; a lower epoch is refused.
        booked_tokens: prompt plus the admission quantile of the output.
        key: the coordinator's order, lower first; also the engine's own priority.
    """

    stage_id: StageId
    attempt: int
    model: ModelName
    epoch: int
    seq: int
    prompt_tokens: int
    booked_tokens: int
    service_class: ServiceClass
    key: float = 0.0


@dataclass(frozen=True, slots=True)
class StageRebooked:
    """A better prediction came for a stage that the coordinator has sent here.

    Attributes:
        epoch, seq: of the coordinator's command; another epoch is stale.
        booked_tokens: prompt plus the new admission quantile, at least what the stage holds.
    """

    stage_id: StageId
    attempt: int
    epoch: int
    seq: int
    prompt_tokens: int
    booked_tokens: int


@dataclass(frozen=True, slots=True)
class StageOutgrew:
    """The stage holds more tokens than it booked."""

    stage_id: StageId
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StageSentFirstByte:
    """The engine began to answer: from now on only level 4 or a last-resort level 5 touches it."""

    stage_id: StageId


@dataclass(frozen=True, slots=True)
class StageLeft:
    """The relay of the stage is over, whatever the reason; its KV is free on the engine.

    Also the answer to `AbortStage` of a forwarded stage: until it comes, the stage counts as
    running on its engine, which cannot sleep before.
    """

    stage_id: StageId


@dataclass(frozen=True, slots=True)
class StageWithdrawn:
    """The coordinator took the stage back (its caller went away, or the link broke).

    Ends a held or a forwarded stage at once; the host has closed the request to the engine. A
    `StageLeft` that still comes afterwards is stale and harmless.
    """

    stage_id: StageId


@dataclass(frozen=True, slots=True)
class EngineAdopted:
    """At start the daemon found a healthy engine of its own from before.

    Attributes:
        status: IDLE, SLEEPING or SUSPENDED, as read from the engine.
        devices: where it runs, in tensor-parallel order; empty = the first ones of the node.

    Its generation is 1.
    """

    engine_id: EngineId
    model: ModelName
    status: EngineStatus
    tier: ResidencyTier
    kv_limit_bytes: int
    readings: EngineReadings
    devices: tuple[DeviceName, ...] = ()


@dataclass(frozen=True, slots=True)
class TransitionFinished:
    """An effect on an engine was carried out and verified by reading back."""

    engine_id: EngineId
    generation: int
    effect_id: int
    readings: EngineReadings
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TransitionFailed:
    """An effect on an engine did not do what it should.

    Attributes:
        alive: the process is still up, in a state that is not trusted.
        permanent: trying again cannot help (binary missing, unsupported, weights unreadable).
    """

    engine_id: EngineId
    generation: int
    effect_id: int
    reason: str
    alive: bool
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class EngineExited:
    """The process is gone without having been asked to go."""

    engine_id: EngineId
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryRead:
    """Books against readings. A lowered budget stops admissions and starts degradation.

    Attributes:
        budgets: what models may use on each device now (``host`` included).
        engines: device bytes that each engine really holds, summed over its devices.
    """

    budgets: Mapping[DeviceName, int]
    engines: Mapping[EngineId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelActionRequested:
    """Somebody asked by hand: wake, sleep, evict, pin or unpin."""

    request_id: int
    action: ModelAction
    model: ModelName


@dataclass(frozen=True, slots=True)
class PrewarmAdvised:
    """The coordinator expects a stage for `model` soon; accepted only into free headroom."""

    model: ModelName
    probability: float
    expected_at_s: float
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class EpochAnnounced:
    """A coordinator connected; a higher epoch withdraws whatever the older one had offered."""

    epoch: int


NodeEvent = (
    StageOffered
    | StageRebooked
    | StageOutgrew
    | StageSentFirstByte
    | StageLeft
    | StageWithdrawn
    | EngineAdopted
    | TransitionFinished
    | TransitionFailed
    | EngineExited
    | MemoryRead
    | ModelActionRequested
    | PrewarmAdvised
    | EpochAnnounced
    | TimerFired
    | ShutdownRequested
)
