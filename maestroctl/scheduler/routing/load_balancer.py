"""Chimera's load balancer (C Algorithm 1): the most confident model that is not too slow.

The fastest candidate is the default. A more confident one takes its place when its estimated
latency stays within (1 + tau) of the fastest's and its confidence is higher by delta_s at least.

    `chimera`       L[m] = Pi[m] x decode_s[m] / sum of max_batch of m's live engines (the paper's)
    `chimera_full`  L[m] = T_ready(m) + (Pi[m] + Y[m]) x decode_s[m] / the same

In words: the tokens promised to the model's engines, in the full form with the job's own, at the
rate at which full engines produce them; decode_s is the time of an iteration at `max_batch`. The
paper's form is zero for every idle model, whatever it costs to run there. Decision 11 in
docs/decisions says why neither is what `maestroctl` does.

Limits: tau -> 0 gives the fastest, tau -> infinity the most confident, delta_s -> infinity never
upgrades. As work piles up on a model its L rises and it loses candidates: overload sheds itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from maestroctl.domain.ids import ModelName
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.records import Candidate
from maestroctl.estimate.service_time import estimate_decode_s
from maestroctl.scheduler.ordering.costs import UNKNOWN_TOKEN_S
from maestroctl.scheduler.routing.fleet_state import Place


class Option(NamedTuple):
    """A candidate model as the choice sees it.

    Attributes:
        confidence: q, probability that the model answers well.
        in_flight_tokens: Pi, promised to the model's engines already.
        job_tokens: Y-hat, what the job would add.
        ready_s: T_ready of the readiest engine.
        latency_s: L, seconds.
    """

    model: ModelName
    confidence: float
    in_flight_tokens: float
    job_tokens: float
    ready_s: float
    latency_s: float


def choose_option(options: Sequence[Option], slack: float, margin: float) -> tuple[Option, Option]:
    """(best, fastest) of C Algorithm 1, steps 3 and 4.

    Of equally fast models the most confident is the fastest, then the one that comes first.

    Args:
        options: at least one; their order breaks ties.
        slack: tau. `margin`: delta_s.
    """
    fast = min(options, key=lambda option: (option.latency_s, -option.confidence))
    for option in sorted(options, key=lambda option: (-option.confidence, option.latency_s)):
        if option.confidence < fast.confidence + margin:
            break
        if is_within_slack(option.latency_s, fast.latency_s, slack):
            return option, fast
    return fast, fast


def is_within_slack(latency_s: float, fastest_s: float, slack: float) -> bool:
    """L <= (1 + tau) L_fast; a tau without limit forbids nothing, not even where L_fast is 0."""
    return math.isinf(slack) or latency_s <= (1.0 + slack) * fastest_s


def token_rate_s(places: Iterable[Place]) -> float:
    """Seconds per token that the model's engines need together, all of them full.

    Source: decode_s / sum of max_batch in C Algorithm 1. Engines that are asleep or stopped count
    as one, since the first stage would wake one. A model without a profile runs on an engine that
    somebody else manages: it is taken for a small one on a GPU.
    """
    rate = 0.0
    for place in places:
        if place.profile is None:
            rate += max(1, place.slots) / UNKNOWN_TOKEN_S
        else:
            batch = place.profile.max_batch
            rate += count_live(place) * batch / estimate_decode_s(place.profile, batch)
    return 1.0 / rate if rate else UNKNOWN_TOKEN_S


def count_live(place: Place) -> int:
    """Engines of the place that have a process; at least one, since a stage would start it."""
    return max(1, sum(engine.status.has_process for engine in place.engines))


def confidences(candidates: Sequence[ModelName], prediction: Prediction) -> list[float]:
    """q of each candidate, in order.

    Where no candidate has a confidence, the user's order stands in for it: the models of a group
    are named best first, so q falls in equal steps from 1. Where only some have one, the others
    get the lowest of these: nothing says that they answer better.
    """
    known = [prediction.confidence.get(model) for model in candidates]
    said = [q for q in known if q is not None]
    if not said:
        return [1.0 - place / len(candidates) for place in range(len(candidates))]
    least = min(said)
    return [least if q is None else q for q in known]


def job_tokens(model: ModelName, prediction: Prediction) -> float:
    """Y-hat: output tokens of this and all later stages on the model, at least this one's."""
    return max(prediction.total_tokens.get(model, 0.0), prediction.output_q50)


def as_candidate(option: Option, rejected: str | None) -> Candidate:
    """What a decision record keeps of an option."""
    terms = {
        "confidence": option.confidence,
        "in_flight_tokens": float(option.in_flight_tokens),
        "job_tokens": option.job_tokens,
        "ready_s": option.ready_s,
        "latency_s": option.latency_s,
    }
    return Candidate(option.model, option.latency_s, terms, rejected)
