"""Baselines for memory pressure: what servers without Algorithm 2 do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maestroctl.domain.ids import DeviceName, EngineId
from maestroctl.scheduler.node.degradation import (
    LEVEL_ABORT,
    LEVEL_KILL_START,
    DegradationPlan,
    DegradationStep,
    usable_choices,
)
from maestroctl.scheduler.node.minimum_impact import Need
from maestroctl.scheduler.node.residency import GiveWayAction, GiveWayChoice, VictimView


class EvictAll:
    """Baseline: everybody who may be stopped is stopped, idle or not, whatever is missing."""

    def plan(
        self,
        deficit: Mapping[DeviceName, int],
        ranked: Sequence[VictimView],
        host_free_bytes: int,
        *,
        may_drain: bool,
        partial: bool = False,
        max_level: int = LEVEL_KILL_START,
    ) -> DegradationPlan | None:
        """See `DegradationPolicy`."""
        picks: dict[EngineId, GiveWayChoice] = {}
        for view in ranked:
            choices = usable_choices(view, may_drain=may_drain, max_level=max_level)
            strongest = [c for c in choices if c.action is not GiveWayAction.SLEEP]
            if strongest and any(strongest[-1].freed_bytes.get(d, 0) > 0 for d in deficit):
                picks[view.engine_id] = strongest[-1]
        enough = Need(deficit, host_free_bytes).is_met(list(picks.values()))
        if not picks or not (enough or partial):
            return None
        return DegradationPlan(tuple(DegradationStep(*pick) for pick in picks.items()))


class AbortFirst:
    """Baseline: the least recently used engine is stopped at once, its requests aborted."""

    def plan(
        self,
        deficit: Mapping[DeviceName, int],
        ranked: Sequence[VictimView],
        host_free_bytes: int,
        *,
        may_drain: bool,  # noqa: ARG002
        partial: bool = False,
        max_level: int = LEVEL_ABORT,  # noqa: ARG002
    ) -> DegradationPlan | None:
        """See `DegradationPolicy`."""
        need = Need(deficit, host_free_bytes)
        steps: list[DegradationStep] = []
        for view in sorted(ranked, key=lambda view: (view.last_used_s, view.engine_id)):
            if need.is_met([step.choice for step in steps]):
                break
            last = view.choices[-1:]
            if last and any(last[0].freed_bytes.get(d, 0) > 0 for d in deficit):
                steps.append(DegradationStep(view.engine_id, last[0]))
        if not need.is_met([step.choice for step in steps]) and not partial:
            return None
        return DegradationPlan(tuple(steps))
