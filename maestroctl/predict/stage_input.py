"""What a predictor is told of one stage: the descriptor, its cut text and the job's history.

A `StageInput` is small (a few kilobytes at most), plain and frozen, so the same value feeds
training, the simulator, the service process over its socket, and the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from maestroctl.domain.stage import StageDescriptor
from maestroctl.domain.stage_text import StageText
from maestroctl.predict.history import HistorySnapshot, JobHistory


@dataclass(frozen=True, slots=True)
class StageInput:
    """One coming stage, as the predictors see it.

    Attributes:
        step: as declared; empty when none was.
        system_tokens, user_tokens: of the text below.
        tail: end of the prompt, in the order in which the model is given it.
        tool_choice: ``auto``, ``none``, ``required``, or the name of a tool.
    """

    candidates: tuple[str, ...]
    workflow: str = ""
    step: str = ""
    role: str = ""
    position: int = 0
    depth: int = 0
    invocation_index: int = 0
    tools_available: int = 0
    tools_digest: str = ""
    tool_choice: str = "auto"
    response_format: str = "text"
    reasoning: str = ""
    max_tokens: int | None = None
    system_tokens: int = 0
    user_tokens: int = 0
    prompt_tokens: int = 0
    system: str = field(default="", repr=False)
    tail: str = field(default="", repr=False)
    history: HistorySnapshot = field(default_factory=HistorySnapshot, repr=False)

    def without_text(self) -> StageInput:
        """The same stage with nothing a person wrote in it: what may be kept for a later refit."""
        history = replace(self.history, first_tail="")
        return replace(self, system="", tail="", history=history)

    def to_json(self) -> dict[str, Any]:
        """Plain values for the wire."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "history"}
        plain["candidates"] = list(self.candidates)
        plain["history"] = self.history.to_json()
        return plain

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> StageInput:
        """The inverse of `to_json`.

        Raises:
            TypeError: a field is missing or unknown.
        """
        plain = dict(raw)
        plain["candidates"] = tuple(plain["candidates"])
        plain["history"] = HistorySnapshot.from_json(plain["history"])
        return cls(**plain)


def build_stage_input(
    descriptor: StageDescriptor, text: StageText, history: JobHistory
) -> StageInput:
    """Take the history's snapshot and put it and the text beside the descriptor."""
    return StageInput(
        candidates=tuple(str(model) for model in descriptor.candidates),
        workflow=descriptor.workflow,
        step=descriptor.step,
        role=descriptor.role,
        position=descriptor.position,
        depth=descriptor.depth,
        invocation_index=descriptor.invocation_index,
        tools_available=descriptor.tools_available,
        tools_digest=descriptor.tools_digest,
        tool_choice=descriptor.tool_choice,
        response_format=descriptor.response_format,
        reasoning=descriptor.reasoning,
        max_tokens=descriptor.max_tokens,
        system_tokens=descriptor.prompt_tokens.system,
        user_tokens=descriptor.prompt_tokens.user,
        prompt_tokens=descriptor.prompt_tokens.full,
        system=text.system,
        tail=text.tail,
        history=history.snapshot(descriptor.role, descriptor.step, text.tail),
    )
