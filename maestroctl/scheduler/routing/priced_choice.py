"""`maestroctl`: the slack of Chimera's Algorithm 1, in proportion to what it buys.

Algorithm 1 takes the most confident model within (1 + tau) of the fastest, however small the gain.
Where one model is better than another at nearly everything, that is the same model for every job,
and which jobs get it is left to chance. Here a job may cost tau typical services more for every
ten points of confidence that it gains, so under load the strong model goes to the jobs it helps
most per second of its time:

    best  = argmax of q[m] - (p[m] - p[fast]) / (10 tau S)   over m with q[m] >= q[fast] + delta_s
    fast  = argmin C; ties by confidence, then by load
    C[m]  = T_ready + wait + (1 + r) s
    p[m]  = T_ready + (1 + r / 10) s
    s     = (t_pre(P) Y / L + Y d) g

    s     seconds of an engine's slot: d per token at the batch that the job would find, since its
          tokens come one after the other, and the prompts of all its stages, as many as Y is
          times this stage's output L
    g     slow-down beside the other models that work on the same device. It keeps a job from an
          idle engine where joining the batch of a busy one is quicker for everybody, and lets it
          go there where the device really serves both at once
    r     rounds: stages beyond the model's slots, per slot; each is delayed by s / slots
    wait  Pi d / slots, the part of it that is beyond the slots
    S     typical service: moving mean of the least p

The queue of the moment decides which model is the fastest (C), but hardly what an upgrade costs
(p). A queue is the past: priced in full, every job may have the strong model while it is empty, and
then the short answers, which cost it little and come out right, are turned away until it has
drained. A price that hardly moves lets the same kind of job through all the time. The tenth of the
queue that is in it sheds load in the end: ten rounds double it. Decision 20 has the measurement.

Where no confidence is known and the order of the group stands in for it, the gain is the same for
every job: there is no kind of job to let through, and p = C.

The limits are the paper's: tau -> 0 the fastest, tau -> infinity the most confident, delta_s ->
infinity never upgrades.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.records import Candidate
from maestroctl.estimate.service_time import estimate_decode_s, estimate_slowdown
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.ordering.costs import UNKNOWN_PROMPT_S, UNKNOWN_TOKEN_S
from maestroctl.scheduler.routing.assigned_choice import AssignedChoice
from maestroctl.scheduler.routing.fleet_state import FleetState, Place
from maestroctl.scheduler.routing.load_balancer import confidences, job_tokens
from maestroctl.scheduler.routing.model_choice import ModelDecision

STEP_OF_CONFIDENCE = 0.1
"""Gain for which a job may cost tau typical services more."""
QUEUE_WEIGHT = 0.1
"""Part of a round of waiting stages that counts in the price of an upgrade."""
TYPICAL_WEIGHT = 0.02
"""Of the newest decision in the moving mean S: about the last fifty count."""


class Offer(NamedTuple):
    """A candidate model and its price.

    Attributes:
        confidence: q. `in_flight_tokens`: Pi. `job_tokens`: Y-hat.
        cost_s: C, what the job would take now and what it adds to others.
        price_s: p, what it takes of the model's engines.
        load: stages per slot, waiting ones included.
    """

    model: ModelName
    confidence: float
    in_flight_tokens: float
    job_tokens: float
    cost_s: float
    price_s: float
    load: float = 0.0


def choose_offer(
    offers: Sequence[Offer], slack: float, margin: float, typical_s: float
) -> tuple[Offer, Offer]:
    """(best, fastest); the order of `offers` breaks ties.

    Args:
        slack: tau. `margin`: delta_s. `typical_s`: S.
    """
    fast = min(offers, key=lambda offer: (offer.cost_s, -offer.confidence, offer.load))
    allowed_s = slack * typical_s / STEP_OF_CONFIDENCE
    best, best_gain = fast, 0.0
    for offer in offers:
        if offer is fast or offer.confidence < fast.confidence + margin:
            continue
        gain = offer.confidence - fast.confidence - _price(offer, fast, allowed_s)
        if gain > best_gain:
            best, best_gain = offer, gain
    return best, fast


def _price(offer: Offer, fast: Offer, allowed_s: float) -> float:
    """Extra seconds in units of confidence, of which one is worth `allowed_s`."""
    extra_s = offer.price_s - fast.price_s
    if extra_s <= 0.0 or math.isinf(allowed_s):
        return 0.0
    return extra_s / allowed_s if allowed_s > 0.0 else math.inf


class PricedChoice(AssignedChoice):
    """See the module.

    Args:
        policy: `latency_slack` is tau, `confidence_margin` delta_s.
    """

    def __init__(self, policy: PolicySpec) -> None:
        super().__init__()
        self._slack = policy.latency_slack
        self._margin = policy.confidence_margin
        self._typical_s: float | None = None

    def pick(
        self, stage: StageState, startable: tuple[ModelName, ...], fleet: FleetState
    ) -> ModelDecision:
        """Weigh every candidate that can be started."""
        wanted = stage.stage.candidates
        quality = dict(zip(wanted, confidences(wanted, stage.prediction), strict=True))
        offers = [self._offer(model, quality[model], stage, fleet) for model in startable]
        typical_s = self._typical(min(offer.price_s for offer in offers))
        if stage.prediction.confidence.keys().isdisjoint(wanted):
            offers = [offer._replace(price_s=offer.cost_s) for offer in offers]
        best, fast = choose_offer(offers, self._slack, self._margin, typical_s)
        if best is fast:
            reason = "the fastest; no other is worth what it costs"
        else:
            reason = f"more confident than {fast.model}, and worth what it costs"
        candidates = tuple(
            _as_candidate(offer, None if offer is best else self._why_not(offer, fast))
            for offer in offers
        )
        return ModelDecision((best.model,), reason, candidates)

    def _typical(self, price_s: float) -> float:
        if self._typical_s is None:
            self._typical_s = price_s
        self._typical_s += TYPICAL_WEIGHT * (price_s - self._typical_s)
        return self._typical_s

    def _offer(
        self, model: ModelName, confidence: float, stage: StageState, fleet: FleetState
    ) -> Offer:
        site = _survey(model, stage, fleet)
        num_live = self.monitor.num_live(model)
        num_waiting = max(0, num_live - site.slots)
        rounds = num_waiting / site.slots
        token_s = site.slowdown * _token_s(site, num_live)
        tokens = job_tokens(model, stage.prediction)
        in_flight = self.monitor.in_flight(model)
        service_s = site.slowdown * _prefill_s(site, stage, tokens) + tokens * token_s
        wait_s = in_flight * token_s / site.slots * num_waiting / num_live if num_waiting else 0.0
        cost_s = site.ready_s + wait_s + (1.0 + rounds) * service_s
        price_s = site.ready_s + (1.0 + QUEUE_WEIGHT * rounds) * service_s
        load = num_live / site.slots
        return Offer(model, confidence, in_flight, tokens, cost_s, price_s, load)

    def _why_not(self, offer: Offer, fast: Offer) -> str:
        if offer is fast:
            return "less confident"
        if offer.confidence < fast.confidence + self._margin:
            return "not more confident by the margin"
        return "not worth its time"


class _Site(NamedTuple):
    """Everything that serves a model.

    Attributes:
        ready_s: until the readiest place can serve. `slowdown`: there, beside its neighbours.
        profile: of the fastest place.
    """

    engines: int
    slots: int
    ready_s: float
    slowdown: float
    profile: ModelProfile | None


def _survey(model: ModelName, stage: StageState, fleet: FleetState) -> _Site:
    """What the places of a model come to; at least one can be started."""
    places = [p for p in fleet.usable((model,), stage.excluded) if p.failure is None]
    profiles = [p.profile for p in places if p.profile is not None]
    return _Site(
        engines=sum(len(p.engines) or 1 for p in places),
        slots=max(1, sum(p.slots for p in places)),
        ready_s=min(p.ready_in_s + p.node.rtt_s for p in places),
        slowdown=_slowdown(places),
        profile=min(profiles, key=lambda profile: profile.decode_s, default=None),
    )


def _slowdown(places: Sequence[Place]) -> float:
    """The least of the places that are ready first."""
    least_s = min(p.ready_in_s for p in places)
    least = math.inf
    for place in places:
        if place.ready_in_s == least_s and least > 1.0:
            gamma = 1.0 if place.profile is None else place.profile.iteration.gamma
            least = min(least, estimate_slowdown(gamma, place.count_neighbours()))
    return least


def _token_s(site: _Site, num_live: int) -> float:
    """Seconds per token of one sequence at the batch that one more stage would make."""
    if site.profile is None:
        return UNKNOWN_TOKEN_S
    batch = 1 + num_live // site.engines
    return estimate_decode_s(site.profile, min(site.profile.max_batch, batch))


def _prefill_s(site: _Site, stage: StageState, tokens: float) -> float:
    """Seconds for the prompts of this and all later stages, taken to be like this one."""
    prompt_s = UNKNOWN_PROMPT_S if site.profile is None else site.profile.iteration.cp_s
    stages = tokens / max(1.0, stage.prediction.output_q50)
    return prompt_s * stage.stage.prompt_tokens.full * max(1.0, stages)


def _as_candidate(offer: Offer, rejected: str | None) -> Candidate:
    terms = {
        "confidence": offer.confidence,
        "in_flight_tokens": float(offer.in_flight_tokens),
        "job_tokens": offer.job_tokens,
        "price_s": offer.price_s,
        "cost_s": offer.cost_s,
    }
    return Candidate(offer.model, offer.cost_s, terms, rejected)
