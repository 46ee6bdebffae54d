"""What a node tells about itself: the dated snapshot a coordinator decides on."""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import DeviceName
from maestroctl.domain.snapshot import DeviceSnapshot, EngineSnapshot, NodeSnapshot
from maestroctl.estimate.readiness import estimate_activation_s
from maestroctl.scheduler.node.admission import count_slots
from maestroctl.scheduler.node.engine_state import EngineState
from maestroctl.scheduler.node.residency import VictimView
from maestroctl.scheduler.node.stages import COOL_DOWN_S
from maestroctl.scheduler.node.state import NodeState
from maestroctl.scheduler.node.victims import VictimPool

MAX_CURVE_POINTS = 8
S = EngineStatus


def make_snapshot(state: NodeState, now_s: float) -> NodeSnapshot:
    """The node as it is; changes nothing."""
    engines = tuple(_describe_engine(engine, now_s) for engine in state.engines.values())
    profiles = tuple(e.profile for e in state.engines.values() if e.profile is not None)
    return NodeSnapshot(
        node=state.node.name,
        cluster=state.node.cluster,
        as_of_s=now_s,
        epoch=state.epoch,
        applied_seq=state.applied_seq,
        devices=tuple(_describe_device(state, device) for device in state.books.budgets),
        engines=engines,
        profiles=profiles,
        never_fits=tuple(state.never_fits.items()),
        curve=make_curve(state),
        draining=state.shutdown is not None,
    )


def _describe_device(state: NodeState, device: DeviceName) -> DeviceSnapshot:
    readings = [
        engine.reading_bytes
        for engine in state.engines.values()
        if device in engine.devices and engine.reading_bytes
    ]
    return DeviceSnapshot(
        device=device,
        budget_bytes=state.books.budgets[device],
        booked_bytes=state.books.booked[device],
        used_bytes=sum(readings) if readings else None,
    )


def _describe_engine(engine: EngineState, now_s: float) -> EngineSnapshot:
    profile = engine.profile
    troubled = engine.status in (S.FAILED, S.STOPPING) or engine.not_before_s > now_s
    return EngineSnapshot(
        engine_id=engine.engine_id,
        model=engine.model,
        status=engine.status,
        tier=engine.tier,
        generation=engine.generation,
        slots=count_slots(engine),
        num_running=len(engine.running),
        num_waiting=len(engine.waiting),
        ready_in_s=estimate_ready_in_s(engine, now_s),
        weights_bytes=profile.weights_bytes if profile else 0,
        context_bytes=profile.context_bytes if profile else 0,
        kv_limit_bytes=engine.kv_limit_bytes,
        kv_booked_bytes=engine.kv_booked_bytes,
        idle_since_s=engine.idle_since_s,
        pinned=engine.pinned,
        failure=engine.failure if troubled else None,
    )


def estimate_ready_in_s(engine: EngineState, now_s: float) -> float:
    """Predicted seconds until the engine could serve; waiting for memory is not foreseen."""
    if engine.profile is None:
        return 0.0
    seconds = estimate_activation_s(engine.profile, engine.status, now_s - engine.since_s)
    if engine.status is S.FAILED:
        return seconds + max(0.0, engine.since_s + COOL_DOWN_S - now_s)
    if engine.status in (S.STOPPED, S.STOPPING):
        return seconds + max(0.0, engine.not_before_s - now_s)
    return seconds


def make_curve(state: NodeState) -> tuple[tuple[int, float], ...]:
    """Degradation curve: (bytes that can be freed, cost in seconds), rising, at most 8 points.

    For the device on which most can be freed; levels 1 and 2 on idle engines, in the order of the
    residency policy.
    """
    ranked = [view for view in VictimPool(state).rank(None) if not view.busy]
    curves = [_curve_of(device, ranked) for device in state.compute_devices()]
    best = max(curves, key=lambda points: points[-1][0] if points else 0, default=[])
    step = -(-len(best) // MAX_CURVE_POINTS) or 1
    return tuple(reversed(best[::-1][::step]))


def _curve_of(device: DeviceName, ranked: list[VictimView]) -> list[tuple[int, float]]:
    freed: dict[str, int] = {}
    cost: dict[str, float] = {}
    points: list[tuple[int, float]] = []
    for level in (1, 2):
        for view in ranked:
            for choice in view.choices:
                num_bytes = choice.freed_bytes.get(device, 0)
                if choice.level == level and num_bytes > freed.get(view.engine_id, 0):
                    freed[view.engine_id] = num_bytes
                    cost[view.engine_id] = choice.cost_s
                    points.append((sum(freed.values()), sum(cost.values())))
    return points
