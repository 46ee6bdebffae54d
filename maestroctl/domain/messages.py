"""What coordinator and node daemon say to each other, besides the stages themselves.

A stage travels as the HTTP request it is, with the headers of `StageHeaders`. Everything else goes
over one control connection, one JSON object per line: ``{"type": NAME, "body": {...}}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from maestroctl.domain.fleet import EventLogSpec, NodeSpec
from maestroctl.domain.ids import ModelName, NodeName, StageId
from maestroctl.domain.llm import EngineSpec, ModelSpec
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.records import DecisionRecord
from maestroctl.domain.snapshot import NodeSnapshot

PROTOCOL_VERSION = 2
"""2: `Rebook`."""


class ModelAction(StrEnum):
    """What a person may ask of a model by hand."""

    WAKE = "wake"
    SLEEP = "sleep"
    EVICT = "evict"
    PIN = "pin"
    UNPIN = "unpin"


@dataclass(frozen=True, slots=True)
class ActionAnswer:
    """What came of a `ModelAction`.

    Attributes:
        error: why it is not possible; None = it is as was asked.
        note: what was so already, where nothing had to be done: "is asleep already".
    """

    error: str | None = None
    note: str = ""


class StageHeaders:
    """Headers of a stage on its way to the node daemon and back, in lower case."""

    STAGE = "x-maestro-stage"
    ATTEMPT = "x-maestro-attempt"
    MODEL = "x-maestro-model"
    COMMAND = "x-maestro-command"
    """``EPOCH.SEQ``"""
    TOKENS = "x-maestro-tokens"
    """``PROMPT.BOOKED``"""
    CLASS = "x-maestro-class"
    KEY = "x-maestro-key"
    REFUSED = "x-maestro-refused"
    """Set on a 503 of the daemon itself: the body is a JSON `StageRefusal`."""
    ACTIVATION = "x-maestro-activation"
    """On an answer: ``wake SECONDS`` or ``start SECONDS`` that the stage waited for."""
    ABORTED = "x-maestro-aborted"
    """Set on a 503 of the daemon itself: the stage was aborted; the value is its outcome."""


ABORT_COMMENT = b": maestro-aborted "
"""Last line of an event stream that the daemon had to end: outcome, space, reason."""


@dataclass(frozen=True, slots=True)
class StageRefusal:
    """Body of a refusal."""

    reason: str
    shortfall_bytes: dict[str, int]
    permanent: bool = False
    retry_in_s: float | None = None


# --- coordinator -> node ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CoordinatorHello:
    """First line of a control connection. What the node is to run comes with it.

    Attributes:
        event_log: an empty folder = in the state folder of the daemon.
    """

    protocol: int
    epoch: int
    node: NodeSpec
    policy: PolicySpec
    models: tuple[ModelSpec, ...]
    engines: tuple[EngineSpec, ...]
    event_log: EventLogSpec = EventLogSpec()


@dataclass(frozen=True, slots=True)
class RequestModelAction:
    """Carry out `action`; answered by `ModelActionAnswered`."""

    request_id: int
    action: ModelAction
    model: ModelName


@dataclass(frozen=True, slots=True)
class Prewarm:
    """Advice: `model` is likely needed `in_s` seconds from now."""

    model: ModelName
    probability: float
    in_s: float
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Rebook:
    """A better prediction: `booked_tokens`, prompt included, for an attempt sent before.

    It travels beside the stages, so it may come before the stage it is about.
    """

    stage_id: StageId
    attempt: int
    epoch: int
    seq: int
    prompt_tokens: int
    booked_tokens: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop the engines and exit."""

    drain: bool


@dataclass(frozen=True, slots=True)
class Ping:
    """Measures the round trip; answered by `Pong` with the same number."""

    number: int


CoordinatorMessage = CoordinatorHello | RequestModelAction | Prewarm | Rebook | Shutdown | Ping

# --- node -> coordinator ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeHello:
    """Answer to `CoordinatorHello`; `error` set = the connection is refused."""

    protocol: int
    node: NodeName
    version: str
    pid: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotPublished:
    """The node looks like this. Times inside are seconds of the node's clock; `age_s` is now."""

    snapshot: NodeSnapshot


@dataclass(frozen=True, slots=True)
class DecisionsMade:
    """Records of the node's decisions, for `explain`."""

    records: tuple[DecisionRecord, ...]


@dataclass(frozen=True, slots=True)
class ModelActionAnswered:
    """The action is done, or not possible."""

    request_id: int
    error: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to `Ping`."""

    number: int


@dataclass(frozen=True, slots=True)
class NodeStopped:
    """Last line: all engines are gone."""


NodeMessage = (
    NodeHello | SnapshotPublished | DecisionsMade | ModelActionAnswered | Pong | NodeStopped
)
