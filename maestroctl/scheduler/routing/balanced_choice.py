"""`chimera` and `chimera_full`: Chimera's Algorithm 1 with the paper's latency and with all of it.

See also: `priced_choice`, which is what `maestroctl` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from maestroctl.domain.ids import ModelName
from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.routing.assigned_choice import AssignedChoice
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.scheduler.routing.load_balancer import (
    Option,
    as_candidate,
    choose_option,
    confidences,
    is_within_slack,
    job_tokens,
    token_rate_s,
)
from maestroctl.scheduler.routing.model_choice import ModelDecision

LatencyForm = Callable[[float, float, float, float], float]
"""(Pi, Y, seconds per token, T_ready) -> L, seconds."""


def full_latency_s(
    in_flight_tokens: float, job_tokens: float, token_s: float, ready_s: float
) -> float:
    """The full form: the job's own tokens and the time until an engine is ready count."""
    return ready_s + (in_flight_tokens + job_tokens) * token_s


def paper_latency_s(
    in_flight_tokens: float,
    job_tokens: float,  # noqa: ARG001
    token_s: float,
    ready_s: float,  # noqa: ARG001
) -> float:
    """The paper's: tokens in flight alone."""
    return in_flight_tokens * token_s


class BalancedChoice(AssignedChoice):
    """C Algorithm 1.

    Args:
        policy: `latency_slack` is tau, `confidence_margin` delta_s.
        latency: form of L.
    """

    def __init__(self, policy: PolicySpec, latency: LatencyForm = full_latency_s) -> None:
        super().__init__()
        self._slack = policy.latency_slack
        self._margin = policy.confidence_margin
        self._latency = latency

    def pick(
        self, stage: StageState, startable: tuple[ModelName, ...], fleet: FleetState
    ) -> ModelDecision:
        """Steps 2 to 4."""
        quality = dict(
            zip(
                stage.stage.candidates,
                confidences(stage.stage.candidates, stage.prediction),
                strict=True,
            )
        )
        options = [self._weigh(model, quality[model], stage, fleet) for model in startable]
        best, fast = choose_option(options, self._slack, self._margin)
        if best is fast:
            reason = "the fastest; no other is more confident within the slack"
        else:
            reason = f"more confident than {fast.model}, within the slack of it"
        candidates = tuple(
            as_candidate(option, self._why_not(option, best, fast)) for option in options
        )
        return ModelDecision((best.model,), reason, candidates)

    def _weigh(
        self, model: ModelName, confidence: float, stage: StageState, fleet: FleetState
    ) -> Option:
        places = [
            place for place in fleet.usable((model,), stage.excluded) if place.failure is None
        ]
        in_flight = self.monitor.in_flight(model)
        tokens = job_tokens(model, stage.prediction)
        ready_s = min(place.ready_in_s + place.node.rtt_s for place in places)
        latency_s = self._latency(in_flight, tokens, token_rate_s(places), ready_s)
        return Option(model, confidence, in_flight, tokens, ready_s, latency_s)

    def _why_not(self, option: Option, best: Option, fast: Option) -> str | None:
        if option is best:
            return None
        if not is_within_slack(option.latency_s, fast.latency_s, self._slack):
            return "too slow"
        return "not more confident by the margin" if best is fast else "less confident"


def make_fastest(policy: PolicySpec) -> BalancedChoice:
    """The least estimated latency, whatever the confidence: never upgrades."""
    return BalancedChoice(replace(policy, latency_slack=0.0, confidence_margin=float("inf")))


def make_most_confident(policy: PolicySpec) -> BalancedChoice:
    """The highest confidence, whatever the latency."""
    return BalancedChoice(replace(policy, latency_slack=float("inf"), confidence_margin=0.0))
