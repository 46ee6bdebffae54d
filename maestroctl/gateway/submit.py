"""The seam between HTTP and the coordinator: what the gateway and the workflow runner call.

`live.coordinator` implements both protocols; tests implement them with a fake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.ids import JobId, ModelName, NodeName
from maestroctl.domain.messages import ActionAnswer, ModelAction
from maestroctl.domain.outcome import Usage
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.domain.stage import ServiceClass, StageDescriptor
from maestroctl.domain.stage_text import StageText
from maestroctl.domain.workflow import WorkflowSpec


@dataclass(frozen=True, slots=True)
class StageCall:
    """One request on its way to a model.

    Attributes:
        path: of the engine's API, for instance ``/v1/chat/completions``.
        body: the request as parsed, unknown fields included; the coordinator sets ``model``,
            ``priority`` and ``stream_options`` in a copy once a model is chosen. Values that
            nobody here reads (messages, tools, unknown fields) may be `msgspec.Raw`, the bytes
            as the client sent them: encode a body with `msgspec.json.encode` only. ``model``,
            ``stream``, ``stream_options`` and the token limits are plain Python values.
        stream: the answer comes as server-sent events.
        wants_usage: the caller itself asked for usage in the stream; else it is stripped.
    """

    stage: StageDescriptor
    text: StageText
    path: str
    body: Mapping[str, Any]
    stream: bool = False
    wants_usage: bool = False


class StageReply(Protocol):
    """An answer whose first byte has come."""

    @property
    def status(self) -> int:
        """HTTP status of the engine's answer."""
        ...

    @property
    def content_type(self) -> str:
        """Of the engine's answer, parameters included."""
        ...

    @property
    def model(self) -> ModelName:
        """The model that answers."""
        ...

    @property
    def usage(self) -> Usage | None:
        """Exact counts once `chunks` is exhausted, where the engine said them."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Body bytes as they arrive, ready to be forwarded.

        Ends normally only when the answer is complete. Leaving the iterator early (``aclose``,
        cancellation) withdraws the stage.

        Raises:
            RequestError: the answer broke off (engine died, was preempted, was stopped); what
                was forwarded so far is not a complete answer.
        """
        ...

    def leave(self) -> None:
        """Withdraw the stage, read or not; for a reply whose caller has gone. Idempotent."""
        ...


class StageService(Protocol):
    """Runs stages: order, model, node, engine."""

    async def run(self, call: StageCall) -> StageReply:
        """Queue, place and send one stage; return when the first byte of its answer is there.

        An answer of the engine with status 4xx is returned like any other. Cancelling the call
        withdraws the stage wherever it is.

        Raises:
            RequestError: Overloaded, Unavailable, UpstreamFailed.
        """
        ...


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A workflow run somebody asks for."""

    workflow: WorkflowSpec
    input: Any = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    service_class: ServiceClass | None = None
    deadline_s: float | None = None


class ControlService(Protocol):
    """What the command line and dashboards ask; nothing here wakes a model by being read.

    Methods returning `dict` return plain JSON values; shapes are in docs/api.md.
    """

    fleet: FleetSpec

    def now_s(self) -> float:
        """The core's clock (monotonic), for turning deadlines into absolute times."""
        ...

    def nodes(self) -> tuple[NodeSnapshot, ...]:
        """Last snapshot of every node that is connected."""
        ...

    def kept_slots(self) -> Mapping[tuple[ModelName, NodeName], int]:
        """Slots that are closed to batch stages now, where there are any."""
        ...

    def not_ready(self) -> str | None:
        """Why nothing can be served now; None when something can."""
        ...

    def status(self) -> dict[str, Any]:
        """Version, pid, uptime, counts of held and queued stages, nodes."""
        ...

    def running(self) -> list[dict[str, Any]]:
        """Stages queued or in flight."""
        ...

    async def submit_job(self, request: JobRequest) -> JobId:
        """Durable once this returns."""
        ...

    async def jobs(self, *, limit: int, status: str | None) -> list[dict[str, Any]]:
        """Newest first."""
        ...

    async def job(self, job_id: JobId) -> dict[str, Any] | None:
        """One job with its stages; None when unknown."""
        ...

    async def cancel_job(self, job_id: JobId) -> bool:
        """False when it is unknown or over."""
        ...

    async def model_action(self, model: ModelName, action: ModelAction) -> ActionAnswer:
        """Carry the action out on every node that holds the model."""
        ...

    async def decisions(self, subject: str, *, limit: int) -> list[dict[str, Any]]:
        """Decision records of a stage, job or engine, oldest first."""
        ...

    async def explain(self, job_id: str, stage: str | None) -> dict[str, Any]:
        """A job with every decision about it: ``job`` (None = unknown), ``stages``, ``near``.

        Args:
            job_id: of a job, or of one of its stages. stage: id or step; None = all.
        """
        ...

    def predictor_status(self) -> dict[str, Any]:
        """What the predictors are, how they do, and what was learned here."""
        ...

    async def predictor_reset(
        self,
        workflow: str | None = None,
        role: str | None = None,
        model: str | None = None,
        *,
        refitted: bool = False,
    ) -> int:
        """Forget what belongs to all names given (none = everything); how many cells that was.

        Args:
            refitted: also the model that was fitted on this fleet's history.
        """
        ...

    def events(self, job_id: JobId | None = None) -> AsyncIterator[dict[str, Any]]:
        """Live events (``type`` and fields), of one job or of all; ends when the job is over."""
        ...
