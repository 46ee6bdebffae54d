"""`power_of_two`: the less loaded of two places drawn by chance; a baseline.

Chance is a hash of the stage's id, not a generator: a route changes nothing, so asking twice gives
the same two places, and a replayed run the same decisions.
"""

from __future__ import annotations

from zlib import crc32

from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.routing.filters import COMMON_FILTERS
from maestroctl.scheduler.routing.fleet_state import FleetState, Place
from maestroctl.scheduler.routing.pipeline import NO_FREE_SLOT, RouteDecision, RoutingPolicy

SEED = 1
"""Of the hash."""


class PowerOfTwo(RoutingPolicy):
    """Two choices per stage and attempt."""

    def route(self, stage: StageState, fleet: FleetState, now_s: float) -> RouteDecision:  # noqa: ARG002
        """For the first of the stage's models that has a place."""
        for model in stage.models:
            viable = [
                place
                for place in fleet.open_places(model).values()
                if all(f.rejects(stage, place, fleet) is None for f in COMMON_FILTERS)
            ]
            if viable:
                return _choose(stage, sorted(viable, key=lambda place: place.name))
        return RouteDecision(None, NO_FREE_SLOT)


def _choose(stage: StageState, viable: list[Place]) -> RouteDecision:
    if len(viable) == 1:
        return RouteDecision(viable[0], "the only place with a free slot")
    number = crc32(f"{stage.stage_id}/{stage.attempt}".encode(), SEED)
    first = number % len(viable)
    second = (first + 1 + number // len(viable) % (len(viable) - 1)) % len(viable)
    pair = (viable[first], viable[second])
    best = min(pair, key=lambda place: (place.in_flight, place.node.in_flight, place.name))
    return RouteDecision(best, f"the less loaded of {pair[0].name} and {pair[1].name}")


def make_power_of_two(policy: PolicySpec) -> RoutingPolicy:  # noqa: ARG001
    """It has no weights."""
    return PowerOfTwo()
