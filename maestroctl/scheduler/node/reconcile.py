"""Room for those who wait: what to begin next (Maestro Algorithms 1 and 2 meet here).

Theory of operation. `reconcile` is level-triggered: it looks at the tables as they are and begins
whatever can be begun. It runs after every event that could let a waiter go on, never on the hot
path, and needs no memory of its own decisions beyond the orders on the engines: a plan whose step
failed, whose beneficiary went away or which became unnecessary simply is not found again, and its
orders are called off. One pass:

1. What is due: cool-downs, time to live, unused prewarms, stops to be repeated.
2. Awake engines that are open again take their waiters; orders given by hand.
3. A budget lowered below the books: idle engines give way, as far as it helps.
4. Claims, first come first served (`claims`). For each:
   a. free memory for the full KV pool (counting what is on its way back): activate, or wait;
   b. idle victims for the full pool (not by a stop where a busy one could sleep instead);
   c. a smaller pool that fits now; d. the least pool; e. idle victims for it;
   f. once the oldest waiter has waited `group_wait_s`: busy victims, which drain first, and when
      they have not done so `drain_wait_s` later, are suspended or have their stages aborted;
   g. wait, when the memory of others could be enough one day; else refuse with the shortfall.
   What an earlier claim waits for is promised to it: later claims do not take it. An elastic KV
   limit that has to rise is a claim as well, for free memory and idle victims only.
5. Orders that no claim needed this time are called off.

Only one transition per device is in flight; whoever comes later in this order waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import EngineId
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.units import format_bytes
from maestroctl.scheduler.node.claim_plans import ClaimPlans
from maestroctl.scheduler.node.claims import AT_REST, Claim, list_claims
from maestroctl.scheduler.node.degradation import (
    LEVEL_ABORT,
    LEVEL_SLEEP,
    LEVEL_STOP,
)
from maestroctl.scheduler.node.due import run_due
from maestroctl.scheduler.node.engine_state import EngineState, OrderCause
from maestroctl.scheduler.node.freed import is_immovable
from maestroctl.scheduler.node.orders import (
    apply_plan,
    call_off_unconfirmed,
    doubt_orders,
    run_order,
)
from maestroctl.scheduler.node.overrun import relieve_overrun
from maestroctl.scheduler.node.placement import Activation, list_activations, start_with
from maestroctl.scheduler.node.requests import fail_requests
from maestroctl.scheduler.node.room import Room
from maestroctl.scheduler.node.shutdown import step_shutdown
from maestroctl.scheduler.node.stages import (
    forward_waiters,
    grown_footprint,
    raise_kv_limit,
    refuse_waiters,
)
from maestroctl.scheduler.node.state import NodeState
from maestroctl.scheduler.node.transitions import (
    abort_frozen,
    begin_resume,
    begin_start,
    begin_wake,
)
from maestroctl.scheduler.node.victims import VictimPool

S = EngineStatus
MAX_REPLANS = 2
"""Steps of plans for one engine that may fail before its waiters are refused."""


def reconcile(state: NodeState) -> None:
    """Begin whatever can be begun, until nothing changes.

    Raises:
        InvariantViolation: the passes do not settle.
    """
    for _ in range(8 + 4 * len(state.engines)):
        state.dirty = False
        run_due(state)
        if state.shutdown is not None:
            step_shutdown(state)
        else:
            _Pass(state).run()
        if not state.dirty:
            return
    raise state.violation("reconciliation does not settle")


def _begin(state: NodeState, engine: EngineState, option: Activation, reason: str) -> None:
    """Activate an engine at rest; memory and locks were checked."""
    starts = engine.status is S.STOPPED
    kv_limit = format_bytes(option.kv_limit_bytes)
    state.record(
        "residency",
        engine.engine_id,
        "start" if starts else "wake",
        f"{reason}, {len(engine.waiting)} waiting, KV limit {kv_limit}",
    )
    engine.give_way = None
    if starts:
        begin_start(state, engine, option.devices, option.kv_limit_bytes)
    elif engine.status is S.SLEEPING:
        begin_wake(state, engine)
    else:
        begin_resume(state, engine)


class _Pass:
    """One look at everybody who waits. Lives for one decision."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._room = Room(state)
        self._victims = VictimPool(state)
        self._plans = ClaimPlans(state, self._room, self._victims)
        self._group_timers: list[EngineId] = []

    def run(self) -> None:
        """Steps 2 to 5."""
        state = self._state
        closed = list(state.books.overrun)
        concerned = [engine for engine in state.engines.values() if engine.is_of_interest]
        doubt_orders(concerned)
        self._room.count_coming(concerned)
        for engine in concerned:
            forward_waiters(state, engine)  # an overrun that closed the engine may be over
            if engine.give_way_is_final():
                run_order(state, engine)
        relieve_overrun(state, self._room, self._victims)
        claims = list_claims(state, concerned)
        for position, claim in enumerate(claims):
            self._plans.later = tuple(later.engine.engine_id for later in claims[position + 1 :])
            if claim.admits_only:
                self._serve_admission(claim)
            elif claim.grows_to_bytes:
                self._grow(claim)
            elif claim.engine.status not in AT_REST:
                continue  # stopped for an earlier claim: its own is made anew when it is gone
            elif claim.prewarms:
                self._prewarm(claim)
            else:
                self._serve(claim)
        call_off_unconfirmed(state, concerned)
        if any(device not in state.books.overrun for device in closed):
            state.dirty = True  # a limit that fell has opened engines that were passed by
        self._drop_group_timers()
        state.contended = bool(state.books.overrun) or any(
            engine.give_way is not None
            or (not engine.status.is_awake and (engine.waiting or engine.running))
            or engine.requests
            for engine in state.engines.values()
        )

    def _serve(self, claim: Claim) -> None:
        """Steps 4a to 4g."""
        engine = claim.engine
        full = list_activations(self._state, engine, least=False)
        if self._take_or_wait(engine, full):  # a
            return
        if self._plans.make_room(claim, full, may_drain=False):  # b
            return
        least = full
        if engine.status is S.STOPPED:
            if self._take_or_wait(engine, self._shrink(engine, full)):  # c
                return
            least = list_activations(self._state, engine, least=True)
            if self._take_or_wait(engine, least):  # d
                return
            if self._plans.make_room(claim, least, may_drain=False):  # e
                return
        self._contend(claim, least)

    def _grow(self, claim: Claim) -> None:
        """Raise an elastic KV limit, if need be into what idle engines give up."""
        state, engine = self._state, claim.engine
        if not state.is_open(engine):
            return  # told to give way for an earlier claim
        option = Activation(
            engine.devices,
            claim.grows_to_bytes,
            grown_footprint(state, engine, claim.grows_to_bytes),
        )
        if not self._room.shortage(engine, option, coming=False):
            raise_kv_limit(state, engine, claim.grows_to_bytes)
            forward_waiters(state, engine)
        elif self._room.shortage(engine, option, coming=True):
            self._plans.make_room(claim, [option], may_drain=False, max_level=LEVEL_STOP)
        else:
            self._room.promise(engine, option)

    def _prewarm(self, claim: Claim) -> None:
        """Into headroom after level 1: idle engines whose sleep costs less than it may save."""
        engine, state = claim.engine, self._state
        advice = engine.advice
        assert advice is not None
        full = list_activations(state, engine, least=False)
        if self._take_or_wait(engine, full):
            return
        profile = engine.need_profile()
        saves_s = advice.probability * (
            profile.wake_s if engine.status is S.SLEEPING else profile.cold_start_s
        )
        found = self._plans.find(claim, full, may_drain=False, max_level=LEVEL_SLEEP)
        if found is not None and found[0].cost_s < saves_s:
            self._plans.carry_out(claim, *found, ", advised")

    def _take_or_wait(self, engine: EngineState, options: Sequence[Activation]) -> bool:
        """Begin one of the options, or wait for its memory or its lock; False = none fits."""
        room = self._room
        fitting = [o for o in options if not room.shortage(engine, o, coming=False)]
        for option in sorted(fitting, key=self._by_free_memory):
            if not room.is_locked(option):
                if engine.wanted_since_s() is None and engine.advice is not None:
                    engine.prewarm_expected_s = engine.advice.expected_s
                    _begin(self._state, engine, option, "prewarm advised")
                else:
                    _begin(self._state, engine, option, "wanted")
                return True
        covered = fitting or [o for o in options if not room.shortage(engine, o, coming=True)]
        if covered:
            room.promise(engine, covered[0])
        return bool(covered)

    def _by_free_memory(self, option: Activation) -> tuple[int, tuple[str, ...]]:
        """Most free memory first, then the first devices."""
        free = min((self._state.books.free_bytes(device) for device in option.devices), default=0)
        return (-free, option.devices)

    def _shrink(self, engine: EngineState, full: Sequence[Activation]) -> list[Activation]:
        """Starts with the largest KV limit that fits beside what is there."""
        profile = engine.need_profile()
        shrunk = []
        for option in full:
            shortage = self._room.shortage(engine, option, coming=False)
            kv_limit = option.kv_limit_bytes - max(shortage.values(), default=0)
            if kv_limit >= profile.kv_least_bytes:
                shrunk.append(start_with(profile, option.devices, kv_limit))
        return shrunk

    def _contend(self, claim: Claim, options: Sequence[Activation]) -> None:
        """Steps 4f and 4g: idle engines are not enough."""
        state = self._state
        forced = state.now_s >= claim.force_after_s
        if claim.engine.failed_steps > MAX_REPLANS:
            self._give_up(claim, options, "its memory could not be freed, re-planned twice")
            return
        if forced and self._force(claim, options):
            return
        possible = [o for o in options if not self._room.shortage_ever(claim.engine, o)]
        if not possible:
            self._give_up(claim, options)
        elif forced:
            self._room.promise(claim.engine, possible[0])
        else:
            self._wait_for_group(claim)

    def _force(self, claim: Claim, options: Sequence[Activation]) -> bool:
        """Step 4f: drain busy engines; suspend or abort when that took too long."""
        hard_s = claim.force_after_s + self._state.policy.drain_wait_s
        if self._state.now_s >= hard_s:
            if self._plans.make_room(claim, options, may_drain=True, max_level=LEVEL_ABORT):
                return True
        elif self._plans.find(claim, options, may_drain=True, max_level=LEVEL_ABORT):
            self._watch(claim, hard_s)
        return self._plans.make_room(claim, options, may_drain=True)

    def _give_up(self, claim: Claim, options: Sequence[Activation], why: str = "") -> None:
        """Nobody's memory would be enough: refuse with the shortfall."""
        state, engine = self._state, claim.engine
        shortfalls = [self._room.shortage_ever(engine, option) for option in options]
        shortfall = min(shortfalls, key=lambda short: sum(short.values()), default={})
        missing = ", ".join(f"{format_bytes(n)} on {device}" for device, n in shortfall.items())
        reason = why or f"{missing or 'a device'} short"
        reason = f"no room for {engine.model!r}: {reason}"
        engine.failed_steps = 0
        refuse_waiters(state, engine, reason, shortfall=shortfall)
        fail_requests(state, engine, [ModelAction.WAKE], reason)
        if claim.urgent:
            abort_frozen(state, engine, Outcome.PREEMPTED, reason)

    def _serve_admission(self, claim: Claim) -> None:
        """An awake engine whose device is overrun: others make room, or its waiters go."""
        state, engine = self._state, claim.engine
        short = {d: n for d, n in self._room.overrun().items() if d in engine.devices}
        if not short:
            return
        ranked = self._plans.rank(claim, with_later=True)
        plan = state.degradation.plan(short, ranked, self._room.host_free_bytes(), may_drain=True)
        if plan is not None and state.now_s >= claim.force_after_s:
            reason = f"overrun under {engine.engine_id}"
            apply_plan(state, self._room, plan, OrderCause.CLAIM, reason, engine.engine_id)
        elif plan is not None:
            self._wait_for_group(claim)
        elif any(short[d] > self._movable_bytes(engine, d) for d in short):
            reason = f"memory of this node was lowered below what {engine.model!r} holds"
            refuse_waiters(state, engine, reason, shortfall=short)

    def _movable_bytes(self, engine: EngineState, device: str) -> int:
        """What engines other than this one could give back on `device` one day."""
        return sum(
            size
            for other in self._state.engines.values()
            if other is not engine and not is_immovable(other)
            for name, size in self._state.books.holding(other.engine_id).items()
            if name == device
        )

    def _wait_for_group(self, claim: Claim) -> None:
        """Let whoever serves go on until the oldest waiter has waited its time."""
        if claim.resumes:
            return  # its deadline has a timer of its own
        self._watch(claim, claim.force_after_s)

    def _watch(self, claim: Claim, at_s: float) -> None:
        """Look again at `at_s`, unless the claim is gone by then."""
        self._state.want_timer("group", claim.engine, at_s)
        self._group_timers.append(claim.engine.engine_id)

    def _drop_group_timers(self) -> None:
        keep = {f"group:{engine_id}" for engine_id in self._group_timers}
        for timer_id in [t for t in self._state.timers if t.startswith("group:")]:
            if timer_id not in keep:
                self._state.drop_timer(timer_id)
