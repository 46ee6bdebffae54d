"""What the cores ask for: imperative, still to do. Hosts `match` them, ending in `assert_never`.

The result of an effect, failure included, comes back as an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from maestroctl.domain.engine import ResidencyTier
from maestroctl.domain.ids import (
    DeviceName,
    EngineId,
    JobId,
    ModelName,
    NodeName,
    StageId,
    TimerId,
)
from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.records import DecisionRecord
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.events import StepRef

# --- both cores ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Answer with `TimerFired(timer_id)` at `at_s`; a second one with the same id replaces it."""

    timer_id: TimerId
    at_s: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Forget the timer."""

    timer_id: TimerId


@dataclass(frozen=True, slots=True)
class RecordDecision:
    """Keep the record."""

    record: DecisionRecord


# --- CoordinatorCore ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrepareStep:
    """Render the step, decide its fan-out; answer `StepPrepared` or `StepFailed`."""

    job_id: JobId
    step: str
    visit: int


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run one item of a prepared step: one `StageArrived` per LLM call, then `StepFinished`."""

    job_id: JobId
    ref: StepRef


@dataclass(frozen=True, slots=True)
class FinishJob:
    """The job is over; its running steps, if any, are to be dropped."""

    job_id: JobId
    status: JobStatus
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DispatchStage:
    """Send the stage to the node; answer `StageStarted`/`StageEnded` or `StageRefused`."""

    stage_id: StageId
    attempt: int
    node: NodeName
    model: ModelName
    epoch: int
    seq: int
    prompt_tokens: int
    booked_tokens: int
    service_class: ServiceClass
    key: float


@dataclass(frozen=True, slots=True)
class RebookStage:
    """Tell the node what a better prediction makes of the booking of a dispatched attempt."""

    stage_id: StageId
    attempt: int
    node: NodeName
    epoch: int
    seq: int
    prompt_tokens: int
    booked_tokens: int


@dataclass(frozen=True, slots=True)
class WithdrawStage:
    """Take the dispatched attempt back from the node: close its request."""

    stage_id: StageId
    attempt: int
    node: NodeName


@dataclass(frozen=True, slots=True)
class ResolveStage:
    """The stage is over, exactly once.

    `retry_after_s` is a hint for the caller of one that was rejected or found nothing to serve it;
    None beside UNAVAILABLE = nothing will ever serve it.
    """

    stage_id: StageId
    outcome: Outcome
    reason: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class AdvisePrewarm:
    """Tell the node that `model` is likely needed soon.

    `seq` is that of the stage which was sent to the same node with it, and goes first; 0 = none.
    """

    node: NodeName
    model: ModelName
    probability: float
    expected_at_s: float
    epoch: int
    seq: int


CoordinatorEffect = (
    SetTimer
    | CancelTimer
    | RecordDecision
    | PrepareStep
    | RunStep
    | FinishJob
    | DispatchStage
    | RebookStage
    | WithdrawStage
    | ResolveStage
    | AdvisePrewarm
)

# --- NodeCore -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForwardStage:
    """Open the request on the engine and relay it."""

    stage_id: StageId
    engine_id: EngineId
    generation: int


@dataclass(frozen=True, slots=True)
class RefuseStage:
    """Answer the offer with a refusal."""

    stage_id: StageId
    reason: str
    shortfall_bytes: Mapping[DeviceName, int] = field(default_factory=dict)
    permanent: bool = False
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class AbortStage:
    """End the stage now: a held one is refused, a running one is aborted and visibly broken.

    For a forwarded stage the host answers `StageLeft` when its relay is over.
    """

    stage_id: StageId
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class StartEngine:
    """Start the process with this KV limit, wait until it is ready, verify.

    Attributes:
        devices: where it runs, in tensor-parallel order.
    """

    engine_id: EngineId
    model: ModelName
    generation: int
    effect_id: int
    devices: tuple[DeviceName, ...]
    kv_limit_bytes: int


@dataclass(frozen=True, slots=True)
class WakeEngine:
    """Bring weights and KV back, verify."""

    engine_id: EngineId
    generation: int
    effect_id: int


@dataclass(frozen=True, slots=True)
class SleepEngine:
    """Drop weights (to host memory at tier HOST) and KV, verify that memory came back."""

    engine_id: EngineId
    generation: int
    effect_id: int
    tier: ResidencyTier


@dataclass(frozen=True, slots=True)
class SuspendEngine:
    """Freeze open requests, drop KV and weights, verify (degradation level 4)."""

    engine_id: EngineId
    generation: int
    effect_id: int


@dataclass(frozen=True, slots=True)
class ResumeEngine:
    """Bring a suspended engine back and let its open requests go on, verify."""

    engine_id: EngineId
    generation: int
    effect_id: int


@dataclass(frozen=True, slots=True)
class StopEngine:
    """SIGTERM, then SIGKILL of the whole group after the grace time; verify that all are gone.

    It may come while another effect of the same engine is in flight, which it supersedes (the
    result of the older one is stale), and for a process that has exited: then it finds and ends
    what is left of the group, and succeeds when nothing is.
    """

    engine_id: EngineId
    generation: int
    effect_id: int


@dataclass(frozen=True, slots=True)
class SetKvLimit:
    """Elastic KV: let the engine map at most this much."""

    engine_id: EngineId
    generation: int
    kv_limit_bytes: int


@dataclass(frozen=True, slots=True)
class AnswerModelAction:
    """The action asked for by hand is done, or is not possible for `error`.

    `note` says what was so already, where nothing had to be done.
    """

    request_id: int
    error: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PublishSnapshot:
    """Something a coordinator wants to know has changed: send `NodeCore.snapshot(now)`."""


@dataclass(frozen=True, slots=True)
class NodeEmptied:
    """After `ShutdownRequested`: no stage and no engine is left; the daemon may exit."""


NodeEffect = (
    SetTimer
    | CancelTimer
    | RecordDecision
    | ForwardStage
    | RefuseStage
    | AbortStage
    | StartEngine
    | WakeEngine
    | SleepEngine
    | SuspendEngine
    | ResumeEngine
    | StopEngine
    | SetKvLimit
    | AnswerModelAction
    | PublishSnapshot
    | NodeEmptied
)
