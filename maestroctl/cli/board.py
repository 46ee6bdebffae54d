"""What is known of a running job from its events: one row per run of a step.

Fed by ``/api/jobs/{id}/events`` (``submit --follow``) or by the event bus (``demo``). An event may
be missing (a watcher that is too slow loses the oldest, a coordinator may restart), so every event
stands for itself and an unknown one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from maestroctl.domain.workflow import WorkflowSpec

RowKey = tuple[str, int, int]
"""Step, visit, item."""

_STAGE_STATES = {
    "stage_queued": "queued",
    "stage_dispatched": "waiting",
    "stage_started": "running",
}
"""What the coordinator says of a stage; `waiting` = at its node, which may have to wake a model."""


@dataclass(slots=True)
class StepRow:
    """One run of a step. Owner: the board.

    Attributes:
        is_item: one of several, of a fan-out.
        state: queued, waiting, running, tool, finished, failed.
        tokens: output tokens of all its calls, as far as they are known.
        ttft_s: first token of its first call.
        text: the newest piece of the answer.
        note: what a person should know: a tool's name, why it failed or was tried again.
    """

    step: str
    visit: int
    item: int
    num: int
    is_item: bool = False
    state: str = "queued"
    model: str = ""
    stage_id: str = ""
    tokens: int = 0
    ttft_s: float | None = None
    started_s: float = 0.0
    ended_s: float | None = None
    text: str = ""
    note: str = ""

    @property
    def label(self) -> str:
        """``code``, ``code #2`` for a second visit, ``note [3]`` for an item of a fan-out."""
        visit = f" #{self.visit}" if self.visit > 1 else ""
        item = f" [{self.item + 1}]" if self.is_item else ""
        return f"{self.step}{visit}{item}"

    @property
    def is_over(self) -> bool:
        """Nothing changes it any more."""
        return self.ended_s is not None


@dataclass(slots=True)
class JobBoard:
    """The rows of one job, in the order in which they began.

    Args:
        now_s: any steady clock, seconds.
        workflow: what runs, for what events do not say.
    """

    now_s: Callable[[], float]
    workflow: WorkflowSpec | None = None
    rows: dict[RowKey, StepRow] = field(default_factory=dict)
    status: str = "running"
    reason: str = ""
    lost: int = 0
    _stage_states: dict[str, str] = field(default_factory=dict)

    def apply(self, event: Mapping[str, Any]) -> str | None:
        """Take an event in; a line for people when it is worth one."""
        kind = str(event.get("type", ""))
        if kind == "job_finished":
            self.status = str(event.get("status", "finished"))
            self.reason = str(event.get("reason", ""))
        elif kind == "events_lost":
            self.lost += int(event.get("count", 0))
        elif "visit" in event and "step" in event:
            return self._apply_to_row(kind, event)
        elif kind in _STAGE_STATES:
            self._stage_states[event["stage_id"]] = _STAGE_STATES[kind]
        return None

    def state_of(self, row: StepRow) -> str:
        """Where a row is now, its stage's state included."""
        if row.is_over or row.state in ("running", "tool"):
            return row.state
        return self._stage_states.get(row.stage_id, row.state)

    @property
    def running(self) -> list[StepRow]:
        """Rows that are not over."""
        return [row for row in self.rows.values() if not row.is_over]

    def counts(self) -> tuple[int, int]:
        """Rows that are over, rows known so far."""
        return len(self.rows) - len(self.running), len(self.rows)

    def _row(self, event: Mapping[str, Any]) -> StepRow:
        key = (str(event["step"]), int(event["visit"]), int(event.get("item", 0)))
        if key not in self.rows:
            spec = self.workflow.steps.get(key[0]) if self.workflow else None
            self.rows[key] = StepRow(
                *key,
                num=len(self.rows),
                is_item=spec is not None and spec.for_each is not None,
                started_s=self.now_s(),
            )
        return self.rows[key]

    def _apply_to_row(self, kind: str, event: Mapping[str, Any]) -> str | None:
        row = self._row(event)
        if kind.startswith("stage_"):
            return self._apply_stage(kind, row, event)
        text = str(event.get("text", ""))
        match kind:
            case "step_started":
                return f"{row.label}: started"
            case "tool_called":
                row.state, row.note = "tool", text
                return f"{row.label}: calls {text}"
            case "tool_returned":
                row.note = ""
            case "step_finished":
                row.state, row.ended_s, row.note = "finished", self.now_s(), text
                return f"{row.label}: {self._how_it_ended(row, event)}"
            case "step_failed":
                row.state, row.ended_s, row.note = "failed", self.now_s(), text
                return f"{row.label}: failed: {text}"
        return None

    def _apply_stage(self, kind: str, row: StepRow, event: Mapping[str, Any]) -> str | None:
        row.stage_id = str(event.get("stage_id") or row.stage_id)
        row.model = str(event.get("model") or row.model)
        match kind:
            case "stage_started":
                row.state = "queued"
            case "stage_first_token":
                row.state = "running"
                if row.ttft_s is None:
                    row.ttft_s = event.get("ttft_s")
                return f"{row.label}: {row.model} answers after {row.ttft_s or 0:.1f} s"
            case "stage_text":
                row.state = "running"
                row.text = (row.text + str(event.get("text", "")))[-400:]
            case "stage_ended":
                row.tokens += int(event.get("output_tokens") or 0)
                self._stage_states.pop(row.stage_id, None)
            case "stage_retried":
                row.note = f"tried again: {event.get('text', '')}"
                return f"{row.label}: {row.note}"
        return None

    def _how_it_ended(self, row: StepRow, event: Mapping[str, Any]) -> str:
        seconds = float(event.get("seconds") or 0.0)
        tokens = f", {row.tokens} tokens" if row.tokens else ""
        note = f" ({row.note})" if row.note else ""
        return f"finished in {seconds:.1f} s{tokens}{note}"
