"""Two models on three nodes that come and go: who waits, who is sent, and a second book of it all.

The book follows the effects alone. Of the core it reads who waits and in which order, which
places a refusal has blocked, and what is kept for interactive stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import hypothesis.strategies as st

from maestroctl.domain.ids import NodeName, StageId, TimerId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.effects import CancelTimer, DispatchStage, ResolveStage, SetTimer
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    NodeLost,
    NodeSnapshotReceived,
    PredictionArrived,
    StageArrived,
    StageCancelled,
    StageEnded,
    StageRefused,
    StageStarted,
    TimerFired,
)
from maestroctl.scheduler.routing.fleet_state import Place
from maestroctl.testing.coordinator_builders import (
    arrival,
    limited,
    make_engine,
    make_fleet,
    make_profile,
    make_snapshot,
    make_stage,
)

NODES = {"n1": ("a", "b"), "n2": ("a",), "n3": ("a", "b")}
GROUPS = (("a",), ("b",), ("a",), ("a", "b"), ("b", "a"))
ASLEEP, ABSENT = 0, -1
"""In place of a number of slots: no engine is awake; the node does not offer the model."""
MAX_WAIT_S = 10.0

Step = tuple[str, int, int]
"""What happens, and two numbers that say to whom and how."""
KINDS = (
    *("batch", "batch", "interactive", "interactive", "predict", "end", "end", "end"),
    *("start", "refuse", "fail", "cancel", "snapshot", "lose", "return", "wait", "wait"),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 400), st.integers(0, 119)),
    min_size=15,
    max_size=90,
)


@dataclass
class Sending:
    """One dispatch: the stage, where, and what waited beside it and was not sent before it."""

    at_s: float
    sent: StageState
    effect: DispatchStage
    passed: list[StageState]


@dataclass
class FleetWorld:
    """Plays steps on a core and keeps its own count of what is where.

    Attributes:
        slots: of every node: what its engines take, or `ASLEEP`, `ABSENT`.
        said: the same as its last snapshot told it, with what is assumed of models asleep.
        live: stages that arrived and are not resolved.
        at_node: attempts that are at nodes; `started` are those that have answered.
        on_told: checks the world and what one event sent, after every event.
    """

    ordering: str
    routing: str = "single_node"
    model_choice: str = "first"
    on_told: Callable[[FleetWorld, list[Sending]], None] = lambda _world, _sendings: None
    now_s: float = 0.0
    number: int = 0
    slots: dict[str, dict[str, int]] = field(default_factory=dict)
    said: dict[str, dict[str, int]] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    applied: dict[str, int] = field(default_factory=dict)
    live: dict[str, None] = field(default_factory=dict)
    resolved: dict[str, Outcome] = field(default_factory=dict)
    at_node: dict[str, DispatchStage] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    timers: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policy = limited(
            ordering=self.ordering,
            routing=self.routing,
            model_choice=self.model_choice,
            max_wait_s=MAX_WAIT_S,
            queue_timeout_s=1e6,
        )
        self.core = CoordinatorCore(make_fleet("ab", NODES, policy), 1)
        self.slots = {"n1": {"a": 3, "b": 3}, "n2": {"a": 3}, "n3": {"a": 0, "b": 0}}
        for name in NODES:
            self.tell(self.snapshot(name))

    # --- telling --------------------------------------------------------------------------------

    def tell(self, event: CoordinatorEvent) -> None:
        """The event; what was sent because of it is checked, in order."""
        if isinstance(event, StageArrived):
            self.live[event.stage.stage_id] = None
        before = list(self.core._tables.queue)
        effects = self.core.handle(event, self.now_s)
        self.core.validate()
        known = self.core._tables.stages
        waiting = {stage.stage_id: stage for stage in before if stage.stage_id in known}
        sendings = []
        for effect in effects:
            match effect:
                case DispatchStage():
                    self._send(effect)
                    waiting.pop(effect.stage_id, None)
                    sent = known[effect.stage_id]
                    passed = list(waiting.values())
                    sendings.append(Sending(self.now_s, sent, effect, passed))
                case ResolveStage():
                    del self.live[effect.stage_id]  # once
                    self.resolved[effect.stage_id] = effect.outcome
                case SetTimer():
                    self.timers[effect.timer_id] = effect.at_s
                case CancelTimer():
                    del self.timers[effect.timer_id]
                case _:
                    pass
        assert {*known} == {*self.live}, "a stage is lost"
        assert self.core.num_in_flight == len(self.at_node)
        self.on_told(self, sendings)

    def _send(self, effect: DispatchStage) -> None:
        assert effect.stage_id in self.live
        assert effect.stage_id not in self.at_node, "sent twice"
        assert effect.node not in self.draining
        self.at_node[effect.stage_id] = effect
        total, _ = self.held(effect.node, effect.model)
        assert total <= self.said[effect.node][effect.model], "beyond its slots"

    def advance(self, seconds: float) -> None:
        """Time passes, and timers fire as they are due."""
        until_s = self.now_s + seconds
        for _ in range(1000):
            due = min(((at_s, name) for name, at_s in self.timers.items()), default=None)
            if due is None or due[0] > until_s:
                self.now_s = until_s
                return
            self.now_s = max(self.now_s, due[0])
            self.fire(due[1])
        raise AssertionError("timers set each other without end")

    def fire(self, name: str) -> None:
        """The timer is due."""
        del self.timers[name]
        self.tell(TimerFired(TimerId(name)))

    # --- steps ----------------------------------------------------------------------------------

    def play(self, step: Step) -> None:
        """Make the step happen; one that cannot happen now does nothing."""
        kind, size, choice = step
        match kind:
            case "wait":
                self.advance((0.25, 1.0, 4.0, 12.0, 40.0)[choice % 5])
            case "batch" | "interactive":
                self._arrive(ServiceClass[kind.upper()], size, choice)
            case "predict" | "cancel":
                self._about_live(kind, size, choice)
            case "snapshot" | "return":
                self._speak(kind == "return", size, choice)
            case "lose":
                self._lose(choice)
            case _:
                self._attempt(kind, size, choice)

    def _arrive(self, service_class: ServiceClass, size: int, choice: int) -> None:
        self.number += 1
        self.advance(0.125 if choice % 4 else 0.0)
        stage = make_stage(
            f"s{self.number:03}",
            f"j{choice % 7}" if choice % 7 < 2 else None,
            GROUPS[choice % len(GROUPS)],
            self.now_s,
            external=choice % 2 == 0,
            service_class=service_class,
        )
        deadline_s = None if choice % 3 == 0 else self.now_s + 2.0 * (choice % 11)
        self.tell(arrival(replace(stage, deadline_s=deadline_s), _guess(size)))

    def _about_live(self, kind: str, size: int, choice: int) -> None:
        if not self.live:
            return
        stage_id = list(self.live)[choice % len(self.live)]
        if kind == "predict":
            self.tell(PredictionArrived(StageId(stage_id), _guess(size)))
        else:
            self._leave(stage_id)
            self.tell(StageCancelled(StageId(stage_id)))

    def _attempt(self, kind: str, size: int, choice: int) -> None:
        """Something becomes of an attempt."""
        self.advance(0.5 if choice % 2 else 0.0)
        if not self.at_node:
            return
        sent = list(self.at_node.values())[choice % len(self.at_node)]
        stage_id, attempt = sent.stage_id, sent.attempt
        has_started = stage_id in self.started
        if kind == "start" or (has_started and kind == "refuse"):
            if not has_started:
                self.started.add(stage_id)
                self.tell(StageStarted(stage_id, attempt))
            return
        if kind == "end":
            self.end(stage_id, size)
            return
        self._leave(stage_id)
        if kind == "refuse":
            hint_s, is_final = (None, 0.5, 3.0)[choice % 3], size % 8 == 0
            self.tell(StageRefused(stage_id, attempt, "no", {}, is_final, hint_s))
        else:
            self.tell(StageEnded(stage_id, attempt, Outcome.FAILED, has_started))

    def end(self, stage_id: str, tokens: int) -> None:
        """An attempt has given its whole answer."""
        sent = self.at_node[stage_id]
        self._leave(stage_id)
        usage = Usage(50, tokens)
        self.tell(StageEnded(sent.stage_id, sent.attempt, Outcome.FINISHED, True, usage))

    def _leave(self, stage_id: str) -> None:
        self.at_node.pop(stage_id, None)
        self.started.discard(stage_id)

    # --- nodes ----------------------------------------------------------------------------------

    def _speak(self, is_return: bool, size: int, choice: int) -> None:
        """One node says what has changed there; or all that there are, what they look like."""
        name = list(NODES)[choice % 3]
        if not is_return:
            models = NODES[name]
            model = models[choice // 3 % len(models)]
            self.slots[name][model] = (3, 4, 2, ASLEEP, 5, 3, ABSENT)[size % 7]
            (self.draining.add if size % 9 == 0 else self.draining.discard)(name)
            names = [name] if name in self.said else []
        else:
            names = list(NODES)
        for told in names:
            self.tell(self.snapshot(told, choice % 5))

    def _lose(self, choice: int) -> None:
        if not self.said:
            return
        name = list(self.said)[choice % len(self.said)]
        del self.said[name], self.applied[name]
        for stage_id in [s for s, sent in self.at_node.items() if sent.node == name]:
            self._leave(stage_id)
        self.tell(NodeLost(NodeName(name), "cable"))

    def snapshot(self, name: str, hops: int = 0) -> NodeSnapshotReceived:
        """What the node looks like now, over a link of so many hops."""
        offered = {m: slots for m, slots in self.slots[name].items() if slots != ABSENT}
        self.said[name] = {model: slots or 3 for model, slots in offered.items()}
        seqs = [sent.seq for sent in self.at_node.values() if sent.node == name]
        self.applied[name] = max([self.applied.get(name, 0), *seqs])
        snapshot = make_snapshot(
            name,
            [make_engine(m, slots, node=name) for m, slots in offered.items() if slots],
            [make_profile(model, max_batch=2) for model in offered],
            self.now_s,
            self.applied[name],
            draining=name in self.draining,
        )
        return NodeSnapshotReceived(snapshot, 0.002 * hops)

    # --- reading --------------------------------------------------------------------------------

    def held(self, name: str, model: str) -> tuple[int, int]:
        """Stages at a place, and the batch ones among them, by the effects alone."""
        here = [s for s in self.at_node.values() if (s.node, s.model) == (name, model)]
        return len(here), sum(sent.service_class is ServiceClass.BATCH for sent in here)

    def places(self) -> list[Place]:
        """Every place of every connected node."""
        nodes = self.core._tables.fleet.nodes.values()
        return [place for node in nodes for place in node.places.values()]

    def waiting(self) -> list[StageState]:
        """Stages in the queue."""
        return list(self.core._tables.queue)


def _guess(size: int) -> Prediction:
    return Prediction(size, 2.0 * size, rank_score=size)
