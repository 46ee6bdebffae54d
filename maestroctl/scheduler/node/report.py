"""What a node tells about itself: the dated snapshot a coordinator decides on."""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import HOST_DEVICE, DeviceName
from maestroctl.domain.snapshot import DeviceSnapshot, EngineSnapshot, NodeSnapshot
from maestroctl.estimate.readiness import estimate_activation_s
from maestroctl.scheduler.node.admission import count_slots
from maestroctl.scheduler.node.degradation import LEVEL_SUSPEND
from maestroctl.scheduler.node.engine_state import EngineState
from maestroctl.scheduler.node.stages import COOL_DOWN_S
from maestroctl.scheduler.node.state import NodeState
from maestroctl.scheduler.node.victims import VictimPool

MAX_CURVE_POINTS = 8
CURVE_MAX_AGE_S = 5.0
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
        devices=engine.devices,
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

    Algorithm 2 is asked for eighths of what the device of most supply can free by levels 1 to 3,
    busy engines drained. Made again when the tables it depends on changed, or after
    `CURVE_MAX_AGE_S`, since chances of use and drain times change by themselves.
    """
    tables = _curve_tables(state)
    known = state.curve
    if known is not None and known[0] == tables and state.now_s - known[1] < CURVE_MAX_AGE_S:
        return known[2]
    curve = _make_curve(state)
    state.curve = (tables, state.now_s, curve)
    return curve


def _curve_tables(state: NodeState) -> object:
    return tuple(
        (e.status, e.tier, len(e.running), bool(e.waiting), e.kv_limit_bytes, e.pinned)
        for e in state.engines.values()
    )


def _make_curve(state: NodeState) -> tuple[tuple[int, float], ...]:
    ranked = VictimPool(state).rank(None)
    supply = {
        device: sum(
            max(
                (c.freed_bytes.get(device, 0) for c in view.choices if c.level < LEVEL_SUSPEND),
                default=0,
            )
            for view in ranked
        )
        for device in state.compute_devices()
    }
    device, most = max(supply.items(), key=lambda pair: pair[1], default=(HOST_DEVICE, 0))
    host_free = state.books.free_bytes(HOST_DEVICE) if HOST_DEVICE in state.books.budgets else 0
    points: dict[int, float] = {}
    for part in range(1, MAX_CURVE_POINTS + 1):
        deficit = most * part // MAX_CURVE_POINTS
        if deficit <= max(points, default=0):
            continue
        plan = state.degradation.plan({device: deficit}, ranked, host_free, may_drain=True)
        if plan is None:
            break
        freed = sum(step.choice.freed_bytes.get(device, 0) for step in plan.steps)
        points[freed] = max([plan.cost_s, *points.values()])
    return tuple(sorted(points.items()))
