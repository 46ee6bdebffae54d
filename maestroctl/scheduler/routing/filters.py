"""Why an open place cannot take a stage."""

from __future__ import annotations

from itertools import islice

from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.routing.fleet_state import FleetState, Place
from maestroctl.scheduler.routing.pipeline import KEPT_FOR_INTERACTIVE, MAX_CANDIDATES, Filter


class NotExcluded:
    """The node said that it can never take this stage."""

    def rejects(self, stage: StageState, place: Place, fleet: FleetState) -> str | None:  # noqa: ARG002
        """Reason or None."""
        if stage.excluded and (place.node.name, place.model) in stage.excluded:
            return "the node can never take it"
        return None


class NotWhereItFailed:
    """A stage that failed on a node is retried on another, unless there is no other."""

    def rejects(self, stage: StageState, place: Place, fleet: FleetState) -> str | None:
        """Reason or None."""
        avoid = stage.avoid
        if avoid is None or place.node.name != avoid:
            return None
        for other in fleet.usable(stage.models, stage.excluded):
            if other.node.name != avoid:
                return "its last attempt failed there"
        return None


class InteractiveReserve:
    """Some slots of a place are closed to batch stages, so that one long one shuts nobody out."""

    def rejects(self, stage: StageState, place: Place, fleet: FleetState) -> str | None:  # noqa: ARG002
        """Reason or None."""
        if place.is_closed_to_batch and stage.stage.service_class is ServiceClass.BATCH:
            return KEPT_FOR_INTERACTIVE
        return None


def places_kept_from(stage: StageState, fleet: FleetState) -> list[Place]:
    """Places with a free slot that turn the stage away by R alone, of the first few that are open.

    R: see `interactive_reserve`.
    """
    if stage.stage.service_class is not ServiceClass.BATCH:
        return []
    return [
        place
        for model in stage.models
        for place in islice(fleet.open_places(model).values(), MAX_CANDIDATES)
        if place.is_closed_to_batch
    ][:MAX_CANDIDATES]


COMMON_FILTERS: tuple[Filter, ...] = (NotExcluded(), NotWhereItFailed(), InteractiveReserve())
"""What every pipeline asks."""
