"""What can be seen of a job while it runs: small events for ``--follow`` and dashboards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from maestroctl.domain.ids import JobId, StageId
from maestroctl.scheduler.events import StepRef


class ProgressKind(StrEnum):
    """What happened."""

    STEP_STARTED = "step_started"
    STAGE_STARTED = "stage_started"
    """A request for a model was handed in; it may wait from here on."""
    FIRST_TOKEN = "stage_first_token"
    TEXT = "stage_text"
    """More of the answer has come."""
    STAGE_ENDED = "stage_ended"
    STAGE_RETRIED = "stage_retried"
    """The request failed and is handed in again."""
    TOOL_CALLED = "tool_called"
    TOOL_RETURNED = "tool_returned"
    STEP_FINISHED = "step_finished"
    STEP_FAILED = "step_failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """One event.

    Attributes:
        round: LLM call of the step, from 0; later ones follow tool results.
        stage_id: of the request, for the events about one.
        model: that answers, once it is known.
        text: what was added to the answer; name of a tool; reason of a failure.
        output_tokens: of the stage so far, as the engine said; None while it has not.
        expected_tokens: predicted output of the stage.
        ttft_s: from handing the request in to its first token.
        seconds: how long the stage, tool or step took.
    """

    kind: ProgressKind
    job_id: JobId
    ref: StepRef
    round: int = 0
    stage_id: StageId | None = None
    model: str | None = None
    text: str = ""
    output_tokens: int | None = None
    expected_tokens: float | None = None
    ttft_s: float | None = None
    seconds: float | None = None

    def as_event(self) -> dict[str, Any]:
        """Plain JSON values: ``type``, the place in the job, and the fields that say something."""
        event: dict[str, Any] = {
            "type": str(self.kind),
            "job_id": self.job_id,
            "step": self.ref.step,
            "visit": self.ref.visit,
            "item": self.ref.item,
            "round": self.round,
        }
        optional = {
            "stage_id": self.stage_id,
            "model": self.model,
            "text": self.text or None,
            "output_tokens": self.output_tokens,
            "expected_tokens": self.expected_tokens,
            "ttft_s": self.ttft_s,
            "seconds": self.seconds,
        }
        return event | {key: value for key, value in optional.items() if value is not None}


OnProgress = Callable[[Progress], None]
