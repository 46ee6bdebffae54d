"""One LLM call as the scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.stage_text import StageText, count_tokens


class ServiceClass(StrEnum):
    """Interactive jobs have somebody waiting; batch jobs soak up the rest."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Prompt length split as Chimera's predictor wants it.

    Attributes:
        system, user: of what the predictors read of the system text and of the prompt.
        full: of all that the model is given.
    """

    system: int
    user: int
    full: int

    @classmethod
    def of(cls, text: StageText, full: int) -> PromptTokens:
        """The split of a prompt of `full` tokens."""
        return cls(count_tokens(text.system), count_tokens(text.tail), full)


@dataclass(frozen=True, slots=True)
class StageDescriptor:
    """What is known of a stage before it runs (Maestro Fig. 6); its text is kept apart.

    Attributes:
        stage_id: unique over the life of the state database.
        job_id: the run it belongs to; a plain request is a job of one stage.
        step: declared step; empty = none was declared.
        position: stages of this job that came before.
        depth: longest path of steps before this one.
        invocation_index: earlier calls of this role in this job.
        candidates: models that may serve it, in the user's order; never empty.
        arrival_s: when it became ready, in the core's time.
        deadline_s: absolute, in the core's time; None = none.
        max_tokens: output limit of the request; None = up to the model's length.
        tools_available: count; `tools_digest` identifies the set.
        external: the caller waits on an open connection (an HTTP request, not a workflow step).
    """

    stage_id: StageId
    job_id: JobId
    candidates: tuple[ModelName, ...]
    arrival_s: float
    prompt_tokens: PromptTokens
    workflow: str = ""
    step: str = ""
    role: str = "assistant"
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    deadline_s: float | None = None
    position: int = 0
    depth: int = 0
    invocation_index: int = 0
    max_tokens: int | None = None
    tools_available: int = 0
    tools_digest: str = ""
    tool_choice: str = "auto"
    response_format: str = "text"
    reasoning: str = ""
    external: bool = True

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ValueError(f"stage {self.stage_id}: no candidate model")

    @property
    def place(self) -> str:
        """The step, or the position in its job of a stage without one: what people read."""
        return self.step or f"call-{self.position}"
