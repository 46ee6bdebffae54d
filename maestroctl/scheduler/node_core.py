"""The brain of a node: admission, residency, degradation and the life cycle of its engines.

Theory of operation. `NodeCore` is a pure state machine: ``handle(event, now_s) -> effects`` is the
only thing that changes it, and the host (the node daemon, or the simulator) carries the effects
out and reports what became of them as further events. One event is handled in three steps: the
handler checks it completely before it changes anything (an impossible one raises
`InvariantViolation` and changes nothing, a late one is counted as stale and changes nothing else);
then, if the event could let somebody go on who waits, `reconcile` begins what can be begun; last,
if a coordinator wants to know, one `PublishSnapshot`. The hot path (an awake engine with a free
slot) takes the first step only.

Contract with the host: every effect on an engine is answered once, by `TransitionFinished` after
reading back or by `TransitionFailed`; `StopEngine` may supersede an effect in flight and may come
for a process that is gone. Every `ForwardStage` is followed by one `StageLeft` or
`StageWithdrawn`; so is an `AbortStage` of a forwarded stage. Timers answer with `TimerFired`.

The parts are in `scheduler.node`; its docstring lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from maestroctl.domain.engine import EngineAbilities, EngineStatus, ResidencyTier
from maestroctl.domain.fleet import NodeSpec
from maestroctl.domain.ids import DeviceName, ModelName, make_engine_id
from maestroctl.domain.llm import ModelProfile, ModelSpec
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.scheduler.effects import NodeEffect, PublishSnapshot
from maestroctl.scheduler.events import (
    EngineAdopted,
    EngineExited,
    EpochAnnounced,
    MemoryRead,
    ModelActionRequested,
    NodeEvent,
    PrewarmAdvised,
    ShutdownRequested,
    StageLeft,
    StageOffered,
    StageOutgrew,
    StageRebooked,
    StageSentFirstByte,
    StageWithdrawn,
    TimerFired,
    TransitionFailed,
    TransitionFinished,
)
from maestroctl.scheduler.node.adoption import adopt_engine, read_memory
from maestroctl.scheduler.node.books import MemoryBooks
from maestroctl.scheduler.node.by_hand import request_action
from maestroctl.scheduler.node.degradation import DegradationPolicy
from maestroctl.scheduler.node.degradation_policies import DEGRADATION_POLICIES
from maestroctl.scheduler.node.engine_state import EngineState
from maestroctl.scheduler.node.epochs import announce_epoch
from maestroctl.scheduler.node.placement import explain_misfit
from maestroctl.scheduler.node.prewarm import consider_advice
from maestroctl.scheduler.node.reconcile import reconcile
from maestroctl.scheduler.node.report import make_snapshot
from maestroctl.scheduler.node.residency import RESIDENCY_POLICIES, ResidencyPolicy
from maestroctl.scheduler.node.shutdown import request_shutdown
from maestroctl.scheduler.node.stage_events import (
    leave_stage,
    note_first_byte,
    offer_stage,
    rebook_outgrown,
    rebook_predicted,
    withdraw_stage,
)
from maestroctl.scheduler.node.state import NodeState, NodeStats
from maestroctl.scheduler.node.transition_results import (
    exit_engine,
    fail_transition,
    finish_transition,
)
from maestroctl.scheduler.node.validation import validate_node


class NodeCore:
    """Decides for one node.

    Args:
        node: the node; its `models` says what it may run (empty = all of `models`).
        policy: names and thresholds.
        devices: budgets in bytes; ``host`` included. A CPU node has ``cpu`` and ``host``.
        profiles: cost of each managed model on this node's devices.
        models: what the user declared, by name.
        capabilities: what the engine of each model can do; absent = managed, cannot sleep.
        unavailable: models that cannot run here whatever the memory, with the reason.
        residency: in place of the policy that `policy` names.
        degradation: in place of the policy that `policy` names.

    Raises:
        ValueError: a managed model has no profile, or a policy is unknown.
    """

    def __init__(
        self,
        node: NodeSpec,
        policy: PolicySpec,
        devices: Mapping[DeviceName, int],
        profiles: Mapping[ModelName, ModelProfile],
        models: Mapping[ModelName, ModelSpec],
        capabilities: Mapping[ModelName, EngineAbilities],
        *,
        unavailable: Mapping[ModelName, str] | None = None,
        residency: ResidencyPolicy | None = None,
        degradation: DegradationPolicy | None = None,
    ) -> None:
        unavailable = unavailable or {}
        engines = {}
        for model, spec in models.items():
            if (not node.models or model in node.models) and model not in unavailable:
                abilities = capabilities.get(model, EngineAbilities())
                engine = _make_engine(node, spec, profiles.get(model), abilities)
                engines[engine.engine_id] = engine
        self._state = NodeState(
            node=node,
            policy=policy,
            books=MemoryBooks(devices),
            residency=residency or _look_up(RESIDENCY_POLICIES, policy.residency, "residency"),
            degradation=degradation
            or _look_up(DEGRADATION_POLICIES, policy.degradation, "degradation"),
            engines=engines,
            by_model={engine.model: engine for engine in engines.values()},
            never_fits={**unavailable, **_find_misfits(engines.values(), devices)},
        )
        self._handlers: dict[type, Callable[[NodeState, Any], None]] = {
            StageOffered: offer_stage,
            StageLeft: leave_stage,
            StageSentFirstByte: note_first_byte,
            StageOutgrew: rebook_outgrown,
            StageRebooked: rebook_predicted,
            StageWithdrawn: withdraw_stage,
            EngineAdopted: adopt_engine,
            TransitionFinished: finish_transition,
            TransitionFailed: fail_transition,
            EngineExited: exit_engine,
            MemoryRead: read_memory,
            ModelActionRequested: request_action,
            PrewarmAdvised: consider_advice,
            EpochAnnounced: announce_epoch,
            TimerFired: _fire_timer,
            ShutdownRequested: request_shutdown,
        }

    def handle(self, event: NodeEvent, now_s: float) -> list[NodeEffect]:
        """Take note of `event` and say what is to be done, in order.

        Args:
            event: what happened.
            now_s: monotonic seconds, never falling.

        Raises:
            InvariantViolation: the event is impossible; nothing was changed.
        """
        state = self._state
        effects: list[NodeEffect] = []
        state.effects = effects
        state.now_s = now_s
        self._handlers[type(event)](state, event)
        if state.dirty:
            reconcile(state)
        if state.changed:
            state.changed = False
            effects.append(PublishSnapshot())
        return effects

    def snapshot(self, now_s: float) -> NodeSnapshot:
        """What a coordinator may know; changes nothing."""
        return make_snapshot(self._state, now_s)

    def validate(self) -> None:
        """Check every invariant.

        Raises:
            InvariantViolation: with the story of the engine concerned.
        """
        validate_node(self._state)

    def story(self, subject: str) -> tuple[str, ...]:
        """What was seen of an engine or a stage lately, oldest first."""
        return self._state.journal.story(subject)

    @property
    def stats(self) -> NodeStats:
        """Counters since the start."""
        return self._state.stats


def _fire_timer(state: NodeState, event: TimerFired) -> None:
    """Times are compared by the reconciliation; one that nobody waits for is stale."""
    if state.timers.pop(event.timer_id, None) is None:
        state.stale()
        return
    state.dirty = True


def _make_engine(
    node: NodeSpec, spec: ModelSpec, profile: ModelProfile | None, abilities: EngineAbilities
) -> EngineState:
    if abilities.managed and profile is None:
        raise ValueError(f"model {spec.name!r} on node {node.name!r} has no profile")
    engine = EngineState(
        engine_id=make_engine_id(spec.name, node.name),
        model=spec.name,
        spec=spec,
        profile=profile,
        abilities=abilities,
        max_batch=min(spec.max_batch, profile.max_batch) if profile else spec.max_batch,
        pinned=spec.pin,
    )
    if not abilities.managed:  # somebody else runs it: it counts as awake and holds nothing here
        engine.status = EngineStatus.IDLE
        engine.tier = ResidencyTier.DEVICE
        engine.generation = 1
    return engine


def _find_misfits(engines: Any, budgets: Mapping[DeviceName, int]) -> dict[ModelName, str]:
    misfits = {}
    for engine in engines:
        if engine.abilities.managed:
            reason = explain_misfit(engine.need_profile(), engine.spec, budgets)
            if reason is not None:
                misfits[engine.model] = reason
    return misfits


def _look_up(table: Mapping[str, Callable[[], Any]], name: str, kind: str) -> Any:
    if name not in table:
        raise ValueError(f"unknown {kind} policy {name!r}; known: {', '.join(sorted(table))}")
    return table[name]()
