"""Degradation policies by name, as ``[policy] degradation`` spells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from maestroctl.scheduler.node.degradation import DegradationPolicy
from maestroctl.scheduler.node.lru_degradation import LruDegradation
from maestroctl.scheduler.node.minimum_impact import MinimumImpact
from maestroctl.scheduler.node.pressure_baselines import AbortFirst, EvictAll

DEGRADATION_POLICIES: Mapping[str, Callable[[], DegradationPolicy]] = {
    "maestroctl": MinimumImpact,
    "maestro": lambda: MinimumImpact(kills_starts=False),
    "lru": LruDegradation,
    "evict_all": EvictAll,
    "abort_first": AbortFirst,
}
