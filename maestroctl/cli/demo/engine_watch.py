"""Follows the engines through their states and keeps how long each transition took.

Fed with node snapshots as they arrive; a node sends one within milliseconds of every change.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.snapshot import EngineSnapshot, NodeSnapshot


class Transition(StrEnum):
    """What is timed."""

    START = "cold start"
    WAKE = "wake"
    SLEEP = "sleep"
    STOP = "stop"


_BEGINS = {
    EngineStatus.STARTING: Transition.START,
    EngineStatus.WAKING: Transition.WAKE,
    EngineStatus.FALLING_ASLEEP: Transition.SLEEP,
    EngineStatus.STOPPING: Transition.STOP,
}
_HOPELESS_STARTS = 2
_ENDS_WELL = {
    Transition.START: frozenset({EngineStatus.ACTIVE, EngineStatus.IDLE}),
    Transition.WAKE: frozenset({EngineStatus.ACTIVE, EngineStatus.IDLE}),
    Transition.SLEEP: frozenset({EngineStatus.SLEEPING, EngineStatus.WAKING}),
    Transition.STOP: frozenset({EngineStatus.STOPPED, EngineStatus.STARTING}),
}


@dataclass(slots=True)
class EngineView:
    """One engine as it was last seen.

    Attributes:
        since_s: when it came into its status, in the watcher's clock.
        num_running: stages it works on.
    """

    model: str
    status: EngineStatus = EngineStatus.STOPPED
    since_s: float = 0.0
    num_running: int = 0
    counts: dict[Transition, int] = field(default_factory=dict)


@dataclass(slots=True)
class EngineWatch:
    """States and times of every engine of one node.

    Attributes:
        times: seconds of every transition that ended well, in order.
        most_awake: the most engines that were seen awake at once while all of them were up; 0 when
            they never were.
        failures: what engines said when they last failed, by model.
        failed_starts: by model.
    """

    engines: dict[str, EngineView]
    times: dict[Transition, list[float]] = field(default_factory=dict)
    most_awake: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    failed_starts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, models: Iterable[str]) -> EngineWatch:
        """Nothing has been seen yet."""
        return cls({model: EngineView(model) for model in models})

    def see(self, snapshot: NodeSnapshot, now_s: float) -> list[str]:
        """Take a snapshot in; lines for people about what changed."""
        present = {engine.model: engine for engine in snapshot.engines}
        lines = []
        for view in self.engines.values():
            engine = present.get(view.model)  # type: ignore[call-overload]
            line = self._see_engine(view, engine, now_s)
            if line:
                lines.append(line)
        if all(view.status.has_process for view in self.engines.values()):
            awake = sum(view.status.is_awake for view in self.engines.values())
            self.most_awake = max(self.most_awake, awake)
        return lines

    @property
    def hopeless(self) -> str | None:
        """Why a model will not come up: it failed to start more than once."""
        for model, count in self.failed_starts.items():
            if count >= _HOPELESS_STARTS:
                return f"{model} does not start: {self.failures.get(model, 'no reason was given')}"
        return None

    def summary(self) -> dict[str, dict[str, Any]]:
        """Count, median, least and most seconds of each kind of transition that was seen."""
        return {
            kind.value: {
                "count": len(times),
                "median_s": round(statistics.median(times), 3),
                "least_s": round(min(times), 3),
                "most_s": round(max(times), 3),
            }
            for kind, times in self.times.items()
        }

    @property
    def cold_over_wake(self) -> float | None:
        """How many times faster waking was, by medians; None when one was not seen."""
        cold, wake = self.times.get(Transition.START), self.times.get(Transition.WAKE)
        if not cold or not wake:
            return None
        return statistics.median(cold) / statistics.median(wake)

    def _see_engine(self, view: EngineView, engine: EngineSnapshot | None, now_s: float) -> str:
        status = EngineStatus.STOPPED if engine is None else engine.status
        view.num_running = 0 if engine is None else engine.num_running
        if engine is not None and engine.failure:
            self.failures[view.model] = engine.failure
        if status is view.status:
            return ""
        before, took_s = view.status, now_s - view.since_s
        view.status, view.since_s = status, now_s
        line = self._note_end(view, before, status, took_s)
        begun = _BEGINS.get(status)
        if begun is None:
            return line
        view.counts[begun] = view.counts.get(begun, 0) + 1
        doing = f"{view.model}: {begun}"
        return f"{line}; {doing}" if line else doing

    def _note_end(
        self, view: EngineView, before: EngineStatus, status: EngineStatus, took_s: float
    ) -> str:
        ended = _BEGINS.get(before)
        if ended is None:
            return ""
        if status not in _ENDS_WELL[ended]:
            if ended is Transition.START:
                self.failed_starts[view.model] = self.failed_starts.get(view.model, 0) + 1
            return f"{view.model}: {ended} ended as {status}"
        self.times.setdefault(ended, []).append(took_s)
        return f"{view.model}: {ended} done in {took_s:.1f} s"
