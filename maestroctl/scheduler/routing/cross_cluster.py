"""Maestro Algorithm 3: which node of which cluster gets a stage (policies `maestro`, `maestroctl`).

    1  filter: healthy, snapshot fresh, model allowed, context fits, device can ever hold it
    2  C_deg: 0 if the need fits the headroom, else from the node's degradation curve
    3  A = prefix saving + epsilon fit
    4  the highest S (Eq 5) of the awake engines and the 32 best others; ties by (load, name)
    5  if the winner is full: stay queued, ask again at T_q.  Else reserve and dispatch.
    6  refused by the node: exclude it, again; none left: back to the queue with the reason

Where the steps are. Step 1: what the node never takes is no place at all (`fleet_state`), a context
that does not fit and permanent refusals are the stage's exclusions (`coordinator_dispatch`), the
rest is here. Steps 2 to 4: `placement_score`, over `place_index`. Steps 5 and 6: `Dispatcher`.

A full engine that is awake competes with one that is asleep: waiting 2 s beats a start of 30 s.
The choice is the head of the queue's; a stage further back waits longer for the same engine, so
`route_behind` asks whether those who wait are worth another engine: it weighs the same places with
what the jobs ahead will take. A queue that has stood for as long as a start takes is worth one, too
(decisions 10 and 27).

A place whose node could only make room by ending work has no price. It comes last, and is asked
only when nothing else is there: the node makes such a stage wait for its neighbours and then lets
it in. Dropping it, as the paper does, would starve a model next to one that is always busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from maestroctl.domain.ids import ModelName
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.records import Candidate
from maestroctl.domain.stage import ServiceClass
from maestroctl.estimate.output_quantile import OutputQuantile
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.ordering.costs import clamp_to_request
from maestroctl.scheduler.routing.filters import NotExcluded, NotWhereItFailed
from maestroctl.scheduler.routing.fleet_state import FleetState, Place
from maestroctl.scheduler.routing.pipeline import (
    KEPT_FOR_INTERACTIVE,
    MAX_CANDIDATES,
    NO_FREE_SLOT,
    NOTHING_REJECTED,
    Filter,
    RouteDecision,
    RoutingPolicy,
)
from maestroctl.scheduler.routing.place_index import Entry
from maestroctl.scheduler.routing.placement_score import (
    EPSILON_S,
    StageNeed,
    Terms,
    Weights,
    estimate_queue_s,
    estimate_run_s,
    score_place,
    weigh_place,
)

MAX_AWAKE, MAX_BUSY, MAX_OTHERS = 32, 16, 32
"""Places that are looked at of those that begin at once, of those that are as full as they serve,
and of those that are asleep; each list best first. The paper looks at every awake engine."""
FRESH_S = 10.0
"""A node is heard of every second; one that is silent for this long may be gone."""


class Rated(NamedTuple):
    """A candidate place with its score; `is_open` for this stage."""

    score: float
    place: Place
    terms: Terms
    is_open: bool


class CrossCluster(RoutingPolicy):
    """Algorithm 3.

    Args:
        policy: `readiness_weight` is lambda, `degradation_weight` mu.
        with_run: take T_exec at the place off the score as well.
    """

    is_timeless = False

    def __init__(self, policy: PolicySpec, *, with_run: bool) -> None:
        self._weights = Weights.of(policy)
        self._with_run = with_run
        self._booked_quantile = OutputQuantile(policy.admission_quantile)
        self._filters: tuple[Filter, ...] = (NotExcluded(), NotWhereItFailed())

    def route(self, stage: StageState, fleet: FleetState, now_s: float) -> RouteDecision:
        """For the first of the stage's models that has a place; else how long to wait."""
        return self._route(stage, 0, fleet, now_s)

    def route_behind(
        self,
        stage: StageState,
        num_ahead: int,
        waited_s: float,
        fleet: FleetState,
        now_s: float,
    ) -> RouteDecision:
        """Whether an engine should come up for those who wait by their own choice, and where.

        Awake places are not for a stage of the back half: what is in one of them takes its next
        slot, before those ahead. A place that comes up gets one stage; the first in the queue fill
        it once it is awake.
        """
        if not any(fleet.index(model).asleep for model in stage.models):
            return RouteDecision(None, "no engine sleeps that could come up")
        decision = self._route(stage, num_ahead, fleet, now_s)
        place = decision.place
        if place is not None and _is_worth_starting(place, num_ahead, fleet):
            return decision
        for model in stage.models:
            asleep = self._passing(fleet.index(model).asleep, stage, fleet, now_s, {})
            for place in islice(asleep, MAX_OTHERS):
                # Rent or buy: it would be up by now had it been started when the queue began.
                is_due = place.disruption_s == 0.0 and place.ready_in_s <= waited_s
                if (
                    is_due
                    and _is_open(place, stage)
                    and _is_worth_starting(place, num_ahead, fleet)
                ):
                    reason = f"others have queued for {waited_s:.0f} s, longer than a start"
                    return RouteDecision(place, reason)
        return decision._replace(place=None)

    def _route(
        self, stage: StageState, num_ahead: int, fleet: FleetState, now_s: float
    ) -> RouteDecision:
        waiting: RouteDecision | None = None
        for model in stage.models:
            if not fleet.open_places(model, stage.stage.service_class):
                continue
            decision = self._route_model(stage, model, num_ahead, fleet, now_s)
            if decision.place is not None:
                return decision
            waiting = waiting or decision
        return waiting or RouteDecision(None, NO_FREE_SLOT)

    def _route_model(
        self, stage: StageState, model: ModelName, num_ahead: int, fleet: FleetState, now_s: float
    ) -> RouteDecision:
        need = stage_need(stage, num_ahead, self._booked_quantile)
        rejected: dict[str, int] = {}
        counts: Mapping[str, int] = rejected
        rated, busy = self._contenders(stage, model, need, fleet, now_s, rejected)
        best = min(rated, key=_rank, default=None)
        if best is None or not best.is_open:
            is_any_open = any(item.is_open for item in rated)
            if not is_any_open and not any(_is_open(place, stage) for place in busy):
                return RouteDecision(None, NO_FREE_SLOT, (), counts or NOTHING_REJECTED)
            assert best is not None, "an open place was not rated"
            reason = f"waiting for {best.place.name} beats what is free"
            wait_s = best.terms.queue_s
            return RouteDecision(None, reason, (), counts or NOTHING_REJECTED, wait_s)
        rated += [self._rate(place, stage, need, fleet, now_s) for place in busy]
        counts = rejected or NOTHING_REJECTED
        if len(rated) == 1:
            return RouteDecision(best.place, "the only place with a free slot", (), counts)
        return RouteDecision(
            best.place, f"highest score of {len(rated)} places", self._shown(rated), counts
        )

    # --- step 1 and the choice of candidates ----------------------------------------------------

    def _contenders(
        self,
        stage: StageState,
        model: ModelName,
        need: StageNeed,
        fleet: FleetState,
        now_s: float,
        rejected: dict[str, int],
    ) -> tuple[list[Rated], list[Place]]:
        """Places among which the best is, rated, and the busy ones that cannot be.

        A busy place that cannot beat the best so far even with a perfect fit is not rated. What is
        cached at home may outweigh a wait, so nothing is left out before the home of the job has
        been looked at.
        """
        index = fleet.index(model)

        def best_of(entries: list[Entry], limit: int) -> Iterator[Place]:
            return islice(self._passing(entries, stage, fleet, now_s, rejected), limit)

        rated = [
            self._rate(place, stage, need, fleet, now_s)
            for entries, limit in ((index.ready, MAX_AWAKE), (index.asleep, MAX_OTHERS))
            for place in best_of(entries, limit)
        ]
        best = min(rated, key=_rank, default=None)
        home = need.home if need.cached_tokens else None
        if any(item.place.name == home for item in rated):
            home = None
        left_out: list[Place] = []
        for place in best_of(index.queueing, MAX_BUSY):
            if home is None and best is not None and self._is_out(place, need, best, now_s):
                left_out.append(place)
                continue
            item = self._rate(place, stage, need, fleet, now_s)
            rated.append(item)
            if best is None or _rank(item) < _rank(best):
                best = item
            if place.name == home:
                home = None
        return rated, left_out

    def _is_out(self, place: Place, need: StageNeed, best: Rated, now_s: float) -> bool:
        """A busy place, away from home, that has a lower score than `best` whatever its terms."""
        if place.free_s is None or best.place.failure is not None:
            return False
        wait_s = place.free_s + place.node.rtt_s - now_s
        most = EPSILON_S - self._weights.readiness * wait_s
        if self._with_run:
            most -= estimate_run_s(place, need)
        return best.terms.disruption_s is not None and most < best.score

    def _passing(
        self,
        entries: list[Entry],
        stage: StageState,
        fleet: FleetState,
        now_s: float,
        rejected: dict[str, int],
    ) -> Iterator[Place]:
        is_plain = not stage.excluded and stage.avoid is None
        for entry in entries:
            place = entry[3]
            reason: str | None = None
            if now_s - place.node.received_s > FRESH_S:
                reason = "its node has not been heard of lately"
            elif not is_plain:
                reason = self._rejection(stage, place, fleet)
            if reason is None:
                yield place
            else:
                rejected[reason] = rejected.get(reason, 0) + 1

    def _rejection(self, stage: StageState, place: Place, fleet: FleetState) -> str | None:
        for a_filter in self._filters:
            reason = a_filter.rejects(stage, place, fleet)
            if reason is not None:
                return reason
        return None

    # --- steps 2 to 4 ---------------------------------------------------------------------------

    def _rate(
        self, place: Place, stage: StageState, need: StageNeed, fleet: FleetState, now_s: float
    ) -> Rated:
        terms = weigh_place(place, need, now_s, with_run=self._with_run)
        is_open = _is_open(place, stage)
        if place.is_closed_to_batch and stage.stage.service_class is ServiceClass.BATCH:
            # Closed to it: T_q is until enough of the others have left.
            free_s = place.predict_free_s(max(0, place.capacity - place.slots + place.reserved))
            terms = terms._replace(queue_s=estimate_queue_s(free_s, now_s), activation_s=0.0)
        if need.num_ahead and (place.readiness == 1.0 or not is_open):
            terms = terms._replace(queue_s=terms.queue_s + queue_ahead_s(place, need, fleet))
        return Rated(score_place(terms, self._weights), place, terms, is_open)

    def _shown(self, rated: list[Rated]) -> tuple[Candidate, ...]:
        kept = sorted(rated, key=_rank)[:MAX_CANDIDATES]
        return tuple(
            Candidate(
                item.place.name,
                item.score,
                {
                    "queue": item.terms.queue_s,
                    "activation": item.terms.activation_s,
                    "rtt": item.terms.rtt_s,
                    "disruption": item.terms.disruption_s or 0.0,
                    "prefix": item.terms.prefix_s,
                    "fit": item.terms.fit,
                    "run": item.terms.run_s,
                },
                _why_closed(item),
            )
            for item in kept
        )


def _why_closed(item: Rated) -> str | None:
    if item.is_open:
        return None
    return "full" if item.place.in_flight >= item.place.slots else KEPT_FOR_INTERACTIVE


def _is_open(place: Place, stage: StageState) -> bool:
    """A slot is free, and not one kept for interactive stages."""
    if place.in_flight >= place.slots:
        return False
    return not (place.is_closed_to_batch and stage.stage.service_class is ServiceClass.BATCH)


def _is_worth_starting(place: Place, num_ahead: int, fleet: FleetState) -> bool:
    """It is neither awake nor coming up, and those who wait would fill what comes up already."""
    if place.readiness == 1.0 or place.in_flight or place.failure is not None:
        return False
    return len(fleet.index(place.model).coming) * place.slots <= num_ahead


def stage_need(
    stage: StageState, num_ahead: int = 0, booked_quantile: OutputQuantile | None = None
) -> StageNeed:
    """What the score wants to know of the stage."""
    descriptor = stage.stage
    prompt = descriptor.prompt_tokens.full
    output = clamp_to_request(descriptor, stage.prediction.output_q50)
    predicted = stage.prediction
    booked_output = (booked_quantile or OutputQuantile()).of(
        predicted.output_q50, predicted.output_q90
    )
    booked = prompt + round(clamp_to_request(descriptor, booked_output))
    homes = stage.job.homes
    home, cached = (None, 0) if homes is None else homes.get(descriptor.role, (None, 0))
    total = max([output, *predicted.total_tokens.values()])
    return StageNeed(prompt, output, booked, home, min(cached, prompt), num_ahead, total)


def queue_ahead_s(place: Place, need: StageNeed, fleet: FleetState) -> float:
    """Seconds that the jobs of the stages ahead take from the awake engines of the model.

    Of the jobs, not of the stages alone: each comes back for its next stage, and what the fleet is
    too small for is all of that. They are taken to be like the job of this stage.
    """
    profile = place.profile
    if profile is None:
        return 0.0
    cost = profile.iteration
    run_s = cost.c0_s + cost.cp_s * need.prompt_tokens
    run_s += need.total_tokens * (cost.c0_s + cost.c1_s * profile.max_batch)
    queueing = fleet.index(place.model).queueing
    shown = [entry[3].capacity for entry in islice(queueing, MAX_BUSY)]
    serving = sum(shown) * len(queueing) / max(1, len(shown))
    return need.num_ahead * run_s / max(1.0, serving)


def _rank(rated: Rated) -> tuple[bool, bool, float, int, str]:
    """Places that failed and places without room come after all others."""
    place = rated.place
    return (
        place.failure is not None,
        rated.terms.disruption_s is None,
        -rated.score,
        place.node.in_flight,
        place.name,
    )


def make_maestro(policy: PolicySpec) -> RoutingPolicy:
    """Eq 5 as in the paper."""
    return CrossCluster(policy, with_run=False)


def make_maestroctl(policy: PolicySpec) -> RoutingPolicy:
    """Eq 5 less T_exec, for nodes that differ and batches that slow each other down."""
    return CrossCluster(policy, with_run=True)
