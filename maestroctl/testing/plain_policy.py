"""Decisions that a test can foretell without knowing a policy: whoever and whatever is first."""

from __future__ import annotations

from maestroctl.domain.policy import PolicySpec

PLAIN = PolicySpec(
    ordering="fcfs",
    routing="single_node",
    model_choice="first",
    residency="lru",
    group_wait_s=5.0,
)
