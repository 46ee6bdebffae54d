"""What is known of a job when its next stage becomes ready.

Covers: counts, lengths and repetitions over the *ended* stages of one job. Does not cover what
is known across jobs; that is `recalibration`. The labels of a stage reach the history only after
it ended, so the snapshot taken for a stage never holds its own labels.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_RECENT = 3
"""How many last lengths are kept one by one; a fourth added nothing on the traces."""


@dataclass(frozen=True, slots=True)
class EndedStage:
    """One stage that ended, as the predictors remember it.

    Attributes:
        role: who made the call.
        step: declared step or phase.
        prompt_tokens: as given to the model.
        output_tokens: from the engine's usage; None = unknown.
        tools_available: how many tools it could have called.
        tool_called: whether it called one; None = unknown.
        prompt_tail: end of the prompt, to notice a loop that asks the same again.
    """

    role: str
    step: str
    prompt_tokens: int
    output_tokens: int | None
    tools_available: int
    tool_called: bool | None = None
    prompt_tail: str = ""


@dataclass(slots=True)
class _Lengths:
    """Running figures over log(1 + output tokens) of one group of stages."""

    count: int = 0
    total: float = 0.0
    total_squared: float = 0.0
    largest: float = 0.0
    recent: list[float] = field(default_factory=list)

    def add(self, log_tokens: float) -> None:
        self.count += 1
        self.total += log_tokens
        self.total_squared += log_tokens * log_tokens
        self.largest = max(self.largest, log_tokens)
        self.recent.append(log_tokens)
        if len(self.recent) > _RECENT:
            del self.recent[0]

    def last(self, back: int) -> float:
        return self.recent[-back] if len(self.recent) >= back else math.nan

    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def spread(self) -> float:
        if not self.count:
            return math.nan
        return math.sqrt(max(0.0, self.total_squared / self.count - self.mean() ** 2))

    def peak(self) -> float:
        return self.largest if self.count else math.nan


@dataclass(frozen=True, slots=True)
class HistorySnapshot:
    """A frozen view of the history for one coming stage.

    Lengths are log(1 + tokens); NaN = none yet.
    """

    num_stages: int = 0
    last_1: float = math.nan
    last_2: float = math.nan
    last_3: float = math.nan
    job_mean: float = math.nan
    job_sum_log: float = 0.0
    role_count: int = 0
    role_last_1: float = math.nan
    role_last_2: float = math.nan
    role_last_3: float = math.nan
    role_mean: float = math.nan
    role_spread: float = math.nan
    role_max: float = math.nan
    step_count: int = 0
    step_run: int = 0
    step_last_1: float = math.nan
    step_last_2: float = math.nan
    step_mean: float = math.nan
    roles_seen: int = 0
    prev_prompt_tokens: float = math.nan
    prev_tool: float = math.nan
    tool_share: float = math.nan
    prev_role: str = ""
    prev_step: str = ""
    same_prompt: bool = False
    first_prompt_tokens: float = math.nan
    first_tail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values for the wire; what equals the default, NaN included, is left out."""
        return {
            name: value
            for name in self.__slots__
            if (value := getattr(self, name)) == value and value != _EMPTY_VALUES[name]
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> HistorySnapshot:
        """The inverse of `to_json`.

        Raises:
            TypeError: a field this version does not know.
        """
        return cls(**raw)


_EMPTY = HistorySnapshot()
_EMPTY_VALUES = {name: getattr(_EMPTY, name) for name in HistorySnapshot.__slots__}


@dataclass(slots=True)
class JobHistory:
    """The ended stages of one job, summed up. One owner: whoever runs the job.

    Memory does not grow with the number of stages, only with the number of roles and steps.
    """

    _job: _Lengths = field(default_factory=_Lengths)
    _by_role: dict[str, _Lengths] = field(default_factory=dict)
    _by_step: dict[tuple[str, str], _Lengths] = field(default_factory=dict)
    _tails: dict[str, bytes] = field(default_factory=dict)
    _num_stages: int = 0
    _output_tokens: int = 0
    _tool_known: int = 0
    _tool_calls: int = 0
    _prev_tool: float = math.nan
    _last: EndedStage | None = None
    _step_run: int = 0
    _first_prompt_tokens: float = math.nan
    _first_tail: str | None = None

    def add(self, stage: EndedStage) -> None:
        """Take in a stage that ended."""
        tail = stage.prompt_tail
        if self._first_tail is None:
            self._first_tail = tail
            self._first_prompt_tokens = float(stage.prompt_tokens)
        same_step = self._last is not None and self._last.step == stage.step
        self._step_run = self._step_run + 1 if same_step else 1
        self._num_stages += 1
        self._last = stage
        self._tails[stage.role] = _digest(tail)
        if stage.output_tokens is not None:
            log_tokens = math.log1p(stage.output_tokens)
            self._output_tokens += stage.output_tokens
            self._job.add(log_tokens)
            self._by_role.setdefault(stage.role, _Lengths()).add(log_tokens)
            self._by_step.setdefault((stage.role, stage.step), _Lengths()).add(log_tokens)
        if stage.tools_available and stage.tool_called is not None:
            # Without tools there was nothing to decide: that says nothing of the job's habits.
            self._tool_known += 1
            self._tool_calls += stage.tool_called
            self._prev_tool = float(stage.tool_called)

    def snapshot(self, role: str, step: str, prompt_tail: str = "") -> HistorySnapshot:
        """What a predictor may know before a stage of this role and step runs."""
        by_role = self._by_role.get(role, _NO_LENGTHS)
        by_step = self._by_step.get((role, step), _NO_LENGTHS)
        last = self._last
        return HistorySnapshot(
            num_stages=self._num_stages,
            last_1=self._job.last(1),
            last_2=self._job.last(2),
            last_3=self._job.last(3),
            job_mean=self._job.mean(),
            job_sum_log=math.log1p(self._output_tokens),
            role_count=by_role.count,
            role_last_1=by_role.last(1),
            role_last_2=by_role.last(2),
            role_last_3=by_role.last(3),
            role_mean=by_role.mean(),
            role_spread=by_role.spread(),
            role_max=by_role.peak(),
            step_count=by_step.count,
            step_run=self._step_run if last is not None and last.step == step else 0,
            step_last_1=by_step.last(1),
            step_last_2=by_step.last(2),
            step_mean=by_step.mean(),
            roles_seen=len(self._tails),
            prev_prompt_tokens=math.nan if last is None else float(last.prompt_tokens),
            prev_tool=self._prev_tool,
            tool_share=self._tool_calls / self._tool_known if self._tool_known else math.nan,
            prev_role="" if last is None else last.role,
            prev_step="" if last is None else last.step,
            same_prompt=self._tails.get(role) == _digest(prompt_tail),
            first_prompt_tokens=self._first_prompt_tokens,
            first_tail=prompt_tail if self._first_tail is None else self._first_tail,
        )


_NO_LENGTHS = _Lengths()


def _digest(tail: str) -> bytes:
    return hashlib.blake2b(tail.encode("utf-8", "surrogatepass"), digest_size=8).digest()
