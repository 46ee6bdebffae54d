"""Which policies decide, and their weights: ``[policy]``."""

from __future__ import annotations

from dataclasses import dataclass


def default_routing(num_nodes: int) -> str:
    """What routes a fleet that does not say: measured in docs/decisions/0024."""
    return "maestroctl" if num_nodes > 1 else "single_node"


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Names resolve in `scheduler.registry`; symbols are the papers'.

    Attributes:
        ordering: global level: which ready stage goes first.
        routing: cluster level: which node; None = by how many there are (`FleetSpec`).
        model_choice: which of several candidate models.
        residency: node level: which engine gives way.
        degradation: node level: how memory is freed under pressure.
        look_ahead: whether nodes are told what workflows are likely to need next.
        readiness_weight: lambda of Maestro Eq 5.
        degradation_weight: mu of Maestro Eq 5.
        latency_slack: tau of Chimera Algorithm 1.
        confidence_margin: delta_s of Chimera Algorithm 1.
        admission_quantile: of the predicted output length, which admission books.
        aging_s: key seconds per second waited.
        max_wait_s: after this long a stage is overtaken only by older ones.
        group_wait_s: how long waiters of another model let the model on the device go on; None =
            so long that switching takes little of the device's time (`node.claims`).
        drain_wait_s: how long a busy engine that has to give way may take to drain before it is
            suspended, or its unstarted stages are aborted.
        resume_deadline_s: a suspended engine precedes every new admission after this.
        queue_timeout_s: a stage that waited this long for a place is resolved as unavailable.
    """

    ordering: str = "workflow_slo"
    routing: str | None = None
    model_choice: str = "maestroctl"
    residency: str = "value"
    degradation: str = "maestroctl"
    look_ahead: str = "workflow"
    readiness_weight: float = 1.0
    degradation_weight: float = 1.0
    latency_slack: float = 0.5
    confidence_margin: float = 0.05
    admission_quantile: float = 0.9
    aging_s: float = 0.05
    max_wait_s: float = 300.0
    group_wait_s: float | None = None
    drain_wait_s: float = 20.0
    resume_deadline_s: float = 30.0
    queue_timeout_s: float = 600.0
