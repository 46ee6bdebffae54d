"""The groups of online learning: a bounded table that is written down piece by piece.

What a group holds is in `running_figures`, what is made of it in `recalibration`. Standard library
only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Self

from maestroctl.errors import SchemaMismatch
from maestroctl.predict.blending import OWN_EXPERTS
from maestroctl.predict.calibrated import Seen, Summary
from maestroctl.predict.running_figures import COVERAGE, Group, StageKey, belongs, role_of

STATE_VERSION = 2
MAX_GROUPS = 20_000
"""Names of workflows and roles come from clients; memory must not grow with them."""


class GroupTable:
    """Groups by name, the least recently touched first. One owner; not thread-safe."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._changed: set[str] = set()
        """Groups touched or dropped since `take_changes`."""
        self.observed = 0

    def _touch(self, name: str) -> Group:
        """The group of this name, made when new; the least recently touched gives way."""
        group = self._groups.pop(name, None) or Group()
        self._groups[name] = group
        self._changed.add(name)
        if len(self._groups) > MAX_GROUPS:
            oldest = next(iter(self._groups))
            del self._groups[oldest]
            self._changed.add(oldest)
        return group

    def drift(self) -> dict[str, dict[str, float]]:
        """Per (workflow, role): recent over long-run error, miss rate, stages seen."""
        return {
            label: group.drift()
            for name, group in self._groups.items()
            if (label := role_of(name)) is not None
        }

    def keep_experts(self, names: Collection[str]) -> None:
        """Drop what was learned about every other model: those are no longer asked."""
        kept = {*names, *OWN_EXPERTS}
        for key, group in self._groups.items():
            for experts in (group.experts, group.total_experts):
                for name in [name for name in experts if name not in kept]:
                    del experts[name]
                    self._changed.add(key)

    def reset(
        self, workflow: str | None = None, role: str | None = None, model: str | None = None
    ) -> int:
        """Forget what belongs to all of the names given; with none given, everything.

        Returns:
            How many groups were forgotten.
        """
        wanted = (workflow, role, None, model)
        doomed = [name for name in self._groups if belongs(name, wanted)]
        for name in doomed:
            del self._groups[name]
        self._changed.update(doomed)
        if not self._groups:
            self.observed = 0
        return len(doomed)

    def seen(self, key: StageKey) -> list[Seen]:
        """What is known of stages like this one, nearest first; for people."""
        return [
            Seen(
                name,
                group.lengths.count,
                math.expm1(group.lengths.quantile(0.5)),
                math.expm1(group.lengths.quantile(COVERAGE)),
            )
            for name, place in zip(("step", "role", "model", "fleet"), key.path(), strict=True)
            if (group := self._groups.get(place)) is not None and len(group.lengths)
        ]

    def summary(self) -> Summary:
        """How many figures there are and how good they were; for people."""
        everything = self._groups.get("*")
        experts = [
            (expert.count, expert.bias)
            for name, group in self._groups.items()
            if role_of(name) is not None and (expert := group.experts.get("model")) is not None
        ]
        known = sum(count for count, _ in experts)
        return Summary(
            cells=len(self._groups),
            observations=self.observed,
            coverage_q90=None if everything is None else 1 - everything.misses,
            bias=sum(count * bias for count, bias in experts) / known if known else None,
        )

    def take_changes(self, most: int) -> dict[str, dict[str, Any] | None]:
        """Up to `most` groups that changed and were not taken since; None = forgotten.

        The state is written down piece by piece, since all of it may be large.
        """
        names = [self._changed.pop() for _ in range(min(most, len(self._changed)))]
        return {
            name: group.to_json() if (group := self._groups.get(name)) else None for name in names
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        groups = {name: group.to_json() for name, group in self._groups.items()}
        return {"version": STATE_VERSION, "observed": self.observed, "groups": groups}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`.

        Raises:
            SchemaMismatch: written by another version.
        """
        if raw.get("version") != STATE_VERSION:
            raise SchemaMismatch(
                f"calibration state has version {raw.get('version')!r}, need {STATE_VERSION}",
                hint="reset the calibration",
            )
        state = cls()
        state.observed = int(raw["observed"])
        state._groups = {name: Group.from_json(group) for name, group in raw["groups"].items()}
        return state
