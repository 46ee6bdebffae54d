"""The cluster level: which node. Filter, score in [0, 1], pick.

A routing policy is a pure function of the stage and the fleet as last seen. It answers with a
place, or with none: then the stage stays queued until something opens, or until `wait_s` when the
policy prefers to wait although another place is open. Filters and scorers look at open places
only; the core asks again whenever one opens.

Filters decide by what stages of one queue class have in common (see `StageQueue`): a filter that
looked at one stage's length would let that stage block the ones behind it. What a node can never
take is said by the node's permanent refusal, which moves the stage to a class of its own.

See also: `model_choice` (which model, decided before), `fleet_state` (what is read here).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from maestroctl.domain.records import Candidate
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.routing.fleet_state import FleetState, Place

MAX_CANDIDATES = 16
"""Candidates that a decision record keeps (algorithms section 5)."""

KEPT_FOR_INTERACTIVE = "its free slots are kept for interactive stages"
NO_FREE_SLOT = "no free slot"
NOTHING_REJECTED: Mapping[str, int] = MappingProxyType({})


class RouteDecision(NamedTuple):
    """Where a stage goes, and why.

    Attributes:
        place: None = it stays queued.
        candidates: empty where there was nothing to choose from.
        rejected_counts: open places that a filter took out, per reason.
        wait_s: ask again after this long even if nothing opens.
    """

    place: Place | None
    reason: str
    candidates: tuple[Candidate, ...] = ()
    rejected_counts: Mapping[str, int] = NOTHING_REJECTED
    wait_s: float | None = None


class RoutingPolicy(ABC):
    """Chooses a place for a stage.

    Attributes:
        is_timeless: it never waits for a place while another is open.
    """

    is_timeless: bool = True

    @abstractmethod
    def route(self, stage: StageState, fleet: FleetState, now_s: float) -> RouteDecision:
        """Decide for the stage that goes first; changes nothing."""

    def route_behind(
        self,
        stage: StageState,  # noqa: ARG002
        num_ahead: int,  # noqa: ARG002
        waited_s: float,  # noqa: ARG002
        fleet: FleetState,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> RouteDecision:
        """Decide for a stage that has `num_ahead` others before it, none of which wants to go.

        Args:
            waited_s: for how long somebody of its class has waited without a break.
        """
        return RouteDecision(None, "it waits for its turn")


class Filter(Protocol):
    """Says why a place cannot take a stage."""

    def rejects(self, stage: StageState, place: Place, fleet: FleetState) -> str | None:
        """The reason, in a few words that do not name the place; None = it can."""
        ...


class Scorer(Protocol):
    """Rates a place for a stage."""

    name: str

    def score(self, stage: StageState, place: Place) -> float:
        """From 0 (worst) to 1 (best)."""
        ...


class Picker(Protocol):
    """Chooses among rated places."""

    def pick(self, scored: Sequence[tuple[float, Place]]) -> Place:
        """One of them; `scored` is not empty, and its order carries no meaning."""
        ...


class MaxScorePicker:
    """The highest score; ties by load, then by name."""

    def pick(self, scored: Sequence[tuple[float, Place]]) -> Place:
        """One of them."""
        return min(scored, key=_rank)[1]


def _rank(scored: tuple[float, Place]) -> tuple[float, int, str]:
    score, place = scored
    return (-score, place.node.in_flight, place.name)


class Pipeline(RoutingPolicy):
    """Filters, then the weighted sum of scorers, then the picker; the first model with a place.

    Args:
        scorers: (weight, scorer); weights are at least 0.
    """

    def __init__(
        self,
        filters: Sequence[Filter],
        scorers: Sequence[tuple[float, Scorer]],
        picker: Picker,
    ) -> None:
        self._filters = tuple(filters)
        self._scorers = tuple(scorers)
        self._picker = picker

    def route(self, stage: StageState, fleet: FleetState, now_s: float) -> RouteDecision:  # noqa: ARG002
        """Decide for the first of the stage's models that has a place."""
        rejected: dict[str, int] | None = None
        for model in stage.models:
            viable = []
            for place in fleet.open_places(model).values():
                reason = self._rejection(stage, place, fleet)
                if reason is None:
                    viable.append(place)
                else:
                    rejected = rejected or {}
                    rejected[reason] = rejected.get(reason, 0) + 1
            if viable:
                return self._choose(stage, viable, rejected or NOTHING_REJECTED)
        return RouteDecision(None, NO_FREE_SLOT, (), rejected or NOTHING_REJECTED)

    def _rejection(self, stage: StageState, place: Place, fleet: FleetState) -> str | None:
        for a_filter in self._filters:
            reason = a_filter.rejects(stage, place, fleet)
            if reason is not None:
                return reason
        return None

    def _choose(
        self, stage: StageState, viable: list[Place], rejected: Mapping[str, int]
    ) -> RouteDecision:
        if len(viable) == 1:
            return RouteDecision(viable[0], "the only place with a free slot", (), rejected)
        scored = [
            (sum(weight * s.score(stage, place) for weight, s in self._scorers), place)
            for place in viable
        ]
        best = self._picker.pick(scored)
        kept = sorted(scored, key=_rank)[:MAX_CANDIDATES]
        candidates = tuple(
            Candidate(
                place.name,
                score,
                {s.name: weight * s.score(stage, place) for weight, s in self._scorers},
            )
            for score, place in kept
        )
        return RouteDecision(
            best, f"best of {len(viable)} places with a free slot", candidates, rejected
        )
