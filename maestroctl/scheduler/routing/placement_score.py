"""Maestro Eq 5 and Eq 6: how good a place is for a stage, every term in seconds.

    S(N, T) = A(N, T) - lambda T_ready(N, T) - mu C_deg(N, T)        (Eq 5)
    T_ready = T_q + T_act + RTT                                      (Eq 6)
    A       = prefix saving + epsilon fit

- T_q: until a stage sent there would begin, from the predicted ends of those that are there. They
  include the activation they wait for, so at a busy place T_act is part of T_q and not added again.
  An answer that runs over its prediction by x seconds is expected to take x more.
- T_act: from the node's profile of the model, less what a transition under way has done.
- C_deg: read from the node's degradation curve (`degradation_cost`).
- Prefix saving: t_pre(P) - t_pre(P - cached): what the job's last stage of the same role left in
  the engine's prefix cache. fit in [0, 1]: how well the stage fills what is there (bin packing).
- The form `maestroctl` takes T_exec off as well: at the batch it would join, on that node's device.
  The paper's nodes are alike and its decoding time does not depend on the batch.
"""

from __future__ import annotations

from typing import NamedTuple

from maestroctl.domain.policy import PolicySpec
from maestroctl.estimate.readiness import estimate_ready_s
from maestroctl.estimate.service_time import estimate_prefill_s
from maestroctl.scheduler.routing.place import Place

EPSILON_S = 0.05
"""Seconds that a perfect fit is worth (algorithms section 5)."""
LEAST_WAIT_S = 0.02
"""Nobody asks again sooner: a decoding step or so."""


class Weights(NamedTuple):
    """lambda and mu of Eq 5."""

    readiness: float = 1.0
    degradation: float = 1.0

    @classmethod
    def of(cls, policy: PolicySpec) -> Weights:
        """As configured."""
        return cls(policy.readiness_weight, policy.degradation_weight)


class StageNeed(NamedTuple):
    """What the score wants to know of a stage.

    Attributes:
        prompt_tokens: P. `output_tokens`: predicted median.
        booked_tokens: P and the admission quantile of the output.
        home: name of the place where the job's last stage of this role ran; None = it is the first.
        cached_tokens: of the prompt, expected in the prefix cache at home.
        num_ahead: stages that wait for the same places and go before it.
        total_tokens: predicted output of this and all later stages of the job; at least
            `output_tokens`.
    """

    prompt_tokens: int
    output_tokens: float
    booked_tokens: int
    home: str | None = None
    cached_tokens: int = 0
    num_ahead: int = 0
    total_tokens: float = 0.0


class Terms(NamedTuple):
    """Parts of a score, seconds; `disruption_s` None = nothing idle could make room."""

    queue_s: float
    activation_s: float
    rtt_s: float
    disruption_s: float | None
    prefix_s: float
    fit: float
    run_s: float


def weigh_place(place: Place, need: StageNeed, now_s: float, *, with_run: bool) -> Terms:
    """Terms of Eqs 5 and 6 for a stage at a place."""
    queue_s = estimate_queue_s(place.free_s, now_s)
    busy = place.free_s is not None
    prefix_s = 0.0
    run_s = 0.0
    profile = place.profile
    if profile is not None:
        if need.home == place.name and place.readiness == 1.0:
            prompt = need.prompt_tokens
            prefix_s = estimate_prefill_s(profile, prompt) - estimate_prefill_s(
                profile, prompt, need.cached_tokens
            )
        if with_run:
            run_s = estimate_run_s(place, need)
    return Terms(
        queue_s,
        0.0 if busy else place.ready_in_s,
        place.node.rtt_s,
        place.disruption_s,
        prefix_s,
        estimate_fit(place, need.booked_tokens),
        run_s,
    )


def estimate_run_s(place: Place, need: StageNeed) -> float:
    """T_exec beside those that are there already; 0 where nothing is known of the engine."""
    profile = place.profile
    if profile is None:
        return 0.0
    cost = profile.iteration
    batch = min(place.in_flight + 1, profile.max_batch)
    prefill_s = cost.c0_s + cost.cp_s * need.prompt_tokens
    return prefill_s + need.output_tokens * (cost.c0_s + cost.c1_s * batch)


def score_place(terms: Terms, weights: Weights) -> float:
    """S of Eq 5, seconds; at most the prefix saving and epsilon."""
    ready_s = estimate_ready_s(terms.queue_s, terms.activation_s, terms.rtt_s)
    return (
        terms.prefix_s
        + EPSILON_S * terms.fit
        - weights.readiness * ready_s
        - weights.degradation * (terms.disruption_s or 0.0)
        - terms.run_s
    )


def estimate_queue_s(free_s: float | None, now_s: float) -> float:
    """T_q: seconds until a stage would begin, from when the next one is predicted to.

    Args:
        free_s: that time; None = at once.
        now_s: the core's time.
    """
    if free_s is None:
        return 0.0
    return max(LEAST_WAIT_S, abs(free_s - now_s))


def estimate_fit(place: Place, more_tokens: int) -> float:
    """How full it gets, in [0, 1]: the KV limit of awake engines, else free memory of the node."""
    profile = place.profile
    if profile is None:
        return 0.0
    if place.readiness < 1.0:
        return place.tightness
    if place.kv_limit_bytes <= 0:
        return 0.0
    filled = (place.tokens + more_tokens) * profile.kv_bytes_per_token / place.kv_limit_bytes
    return filled if filled < 1.0 else 1.0
