"""Which engine gives way first: the residency policy of a node (Maestro Algorithm 1).

A policy ranks `VictimView`s, frozen copies of engines that may give way; it proposes and the core
commits. How many of them must give way, and how far, is `degradation`.

Adding a policy: one class here or in a file of its own, and one line in `RESIDENCY_POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import DeviceName, EngineId, ModelName


class GiveWayAction(StrEnum):
    """One rung of the degradation ladder."""

    SLEEP = "sleep"
    STOP = "stop"
    KILL_START = "kill_start"
    SUSPEND = "suspend"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class GiveWayChoice:
    """One link of an engine's chain: what it can do, what that frees, what it costs.

    Attributes:
        level: of Maestro Algorithm 2, 1 (mildest) to 5.
        tier: where the weights go, for SLEEP; None otherwise.
        freed_bytes: cumulative, per device; negative where the choice *takes* memory (the host).
        cost_s: cumulative, seconds.
        harm: within levels 4 and 5: 0 batch requests, 1 interactive ones, and for those that have
            sent a byte and would be aborted, 2 and 3.
    """

    level: int
    action: GiveWayAction
    freed_bytes: Mapping[DeviceName, int]
    cost_s: float
    tier: ResidencyTier | None = None
    harm: int = 0


@dataclass(frozen=True, slots=True)
class VictimView:
    """An engine that may give way.

    Attributes:
        busy: stages are open on it; it has to drain first (or be suspended, or aborted).
        leaving: it was already told to give way for the same need and has not begun.
        interactive: an interactive stage is open or held on it.
        choices: its chain, mildest first.
        value_per_byte: seconds of activation that keeping it is expected to save, per byte held.
    """

    engine_id: EngineId
    model: ModelName
    status: EngineStatus
    tier: ResidencyTier
    busy: bool
    leaving: bool
    last_used_s: float
    interactive: bool
    choices: tuple[GiveWayChoice, ...]
    value_per_byte: float = 0.0


class ResidencyPolicy(Protocol):
    """Orders engines by how well the node can do without them."""

    def rank_victims(self, candidates: Sequence[VictimView], now_s: float) -> list[VictimView]:
        """`candidates` with the first to give way first; all of them, each once."""
        ...


class LruResidency:
    """Least recently used first; engines that are already leaving, and idle ones, before others.

    Ranking the leaving ones first keeps a decision stable while it is carried out.
    """

    def rank_victims(self, candidates: Sequence[VictimView], now_s: float) -> list[VictimView]:
        """See `ResidencyPolicy`; ties break on the engine id."""
        del now_s
        return sorted(
            candidates,
            key=lambda view: (not view.leaving, view.busy, view.last_used_s, view.engine_id),
        )


class ValueResidency:
    """Least value per byte first, as Greedy-Dual caches do; otherwise as `LruResidency`.

    Value per byte = expected arrivals within the activation time x activation seconds / bytes
    held: what is asked for often, comes back slowly and holds little stays. For a sleeping engine
    that is host memory and context against a cold start, so the host tier follows the same rule.
    """

    def rank_victims(self, candidates: Sequence[VictimView], now_s: float) -> list[VictimView]:
        """See `ResidencyPolicy`; ties break on the last use, then on the engine id."""
        del now_s
        return sorted(
            candidates,
            key=lambda view: (
                not view.leaving,
                view.busy,
                view.value_per_byte,
                view.last_used_s,
                view.engine_id,
            ),
        )


RESIDENCY_POLICIES: Mapping[str, Callable[[], ResidencyPolicy]] = {
    "value": ValueResidency,
    "lru": LruResidency,
}
