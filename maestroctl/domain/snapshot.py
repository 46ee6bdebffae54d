"""Frozen, dated copies of what a node looked like; the coordinator decides on these."""

from __future__ import annotations

from dataclasses import dataclass

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import ClusterName, DeviceName, EngineId, ModelName, NodeName
from maestroctl.domain.llm import ModelProfile


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """One device's books, or the host's (`device` = ``host``).

    Attributes:
        budget_bytes: M_total of Eq 4: what models may use now.
        booked_bytes: M_kv + M_res as booked.
        used_bytes: last reading of what engines really hold; None = never read.
    """

    device: DeviceName
    budget_bytes: int
    booked_bytes: int
    used_bytes: int | None = None

    @property
    def headroom_bytes(self) -> int:
        """R_head of Maestro: may be negative after a budget was lowered."""
        return self.budget_bytes - self.booked_bytes


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """One engine as `ps` shows it.

    Attributes:
        slots: stages it takes at once (section 3, Slots), waiters included.
        num_running: stages forwarded to the engine; `num_waiting`: held by the node for it.
        devices: where it runs, or ran last; empty for one that never ran or is not the node's.
        ready_in_s: predicted seconds until it can serve; 0 while awake.
        kv_booked_bytes: sequence bookings inside `kv_limit_bytes`.
        failure: last error, with the last log lines, when FAILED or in back-off.
    """

    engine_id: EngineId
    model: ModelName
    status: EngineStatus
    tier: ResidencyTier
    generation: int
    slots: int
    num_running: int
    num_waiting: int
    ready_in_s: float
    weights_bytes: int
    context_bytes: int
    kv_limit_bytes: int
    kv_booked_bytes: int
    idle_since_s: float | None = None
    pinned: bool = False
    failure: str | None = None
    devices: tuple[DeviceName, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A node at `as_of_s`.

    Attributes:
        epoch: highest coordinator epoch it has seen.
        applied_seq: last command sequence of that epoch it has applied.
        profiles: cost of each model it may run, on its devices.
        never_fits: models that can never run here, with the reason.
        curve: degradation curve (bytes freed, cost in seconds), at most 8 rising points.
        rtt_s: round trip as the coordinator measures it; the node itself leaves it out.
    """

    node: NodeName
    cluster: ClusterName
    as_of_s: float
    epoch: int
    applied_seq: int
    devices: tuple[DeviceSnapshot, ...]
    engines: tuple[EngineSnapshot, ...]
    profiles: tuple[ModelProfile, ...]
    never_fits: tuple[tuple[ModelName, str], ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    draining: bool = False
    rtt_s: float | None = None
