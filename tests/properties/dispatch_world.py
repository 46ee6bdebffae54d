"""One model on two nodes: who waits, who is sent, and what a second book of the slots says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import hypothesis.strategies as st

from maestroctl.domain.ids import NodeName, StageId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.effects import DispatchStage
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    StageCancelled,
    StageEnded,
    StageRefused,
    StageStarted,
)
from maestroctl.testing.coordinator_builders import (
    arrival,
    limited,
    make_engine,
    make_fleet,
    make_snapshot,
    make_stage,
    node_says,
)

NODES = ("n1", "n2")
MAX_WAIT_S = 10.0

Step = tuple[str, int, int]
"""What happens, and two numbers that say to whom and how."""
KINDS = ("batch", "batch", "interactive", "end", "end", "refuse", "cancel", "snapshot", "wait")
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 400), st.integers(0, 7)),
    min_size=10,
    max_size=80,
)


@dataclass
class Sending:
    """One dispatch: the stage, and what waited beside it and was not sent before it."""

    at_s: float
    sent: StageState
    passed: list[StageState]


@dataclass
class DispatchWorld:
    """Plays steps on a core and keeps its own count of what is where."""

    ordering: str
    slots: int = 3
    now_s: float = 0.0
    number: int = 0
    at_node: dict[str, DispatchStage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policy = limited(ordering=self.ordering, max_wait_s=MAX_WAIT_S, queue_timeout_s=1e6)
        self.core = CoordinatorCore(make_fleet(nodes=NODES, policy=policy), 1)
        for name in NODES:
            self.tell(self.snapshot(name))

    def snapshot(self, name: str) -> CoordinatorEvent:
        """The node says that its engine takes so many stages."""
        engine = make_engine(slots=self.slots, node=name)
        return node_says(make_snapshot(name, [engine], as_of_s=self.now_s))

    def tell(self, event: CoordinatorEvent) -> list[Sending]:
        """The event, and what was sent because of it, in order."""
        before = list(self.core._tables.queue)
        effects = self.core.handle(event, self.now_s)
        self.core.validate()
        known = self.core._tables.stages
        sendings = []
        waiting = {stage.stage_id: stage for stage in before if stage.stage_id in known}
        for effect in effects:
            if isinstance(effect, DispatchStage):
                self.at_node[effect.stage_id] = effect
                waiting.pop(effect.stage_id, None)
                sent = known[effect.stage_id]
                sendings.append(Sending(self.now_s, sent, list(waiting.values())))
        return sendings

    def play(self, step: Step) -> list[Sending]:
        """Make the step happen; one that cannot happen now does nothing."""
        kind, size, choice = step
        if kind == "wait":
            self.now_s += (0.25, 1.0, 4.0, 12.0)[choice % 4]
            return []
        if kind == "snapshot":
            self.now_s += 6.0  # past every pause after a refusal
            return [s for name in NODES for s in self.tell(self.snapshot(name))]
        if kind in ("batch", "interactive"):
            return self.tell(self._arrival(ServiceClass[kind.upper()], size, choice))
        if kind == "cancel":
            return self._cancel(choice)
        return self._leave(kind, size, choice)

    def _arrival(self, service_class: ServiceClass, size: int, choice: int) -> CoordinatorEvent:
        self.number += 1
        self.now_s += 0.125
        job = f"j{choice}" if choice < 3 else None
        stage = make_stage(
            f"s{self.number:03}", job, arrival_s=self.now_s, service_class=service_class
        )
        deadline_s = None if choice % 3 == 0 else self.now_s + 5.0 * choice
        guess = Prediction(size, 2.0 * size, rank_score=size)
        return arrival(replace(stage, deadline_s=deadline_s), guess)

    def _cancel(self, choice: int) -> list[Sending]:
        waiting = list(self.core._tables.queue)
        if not waiting:
            return []
        return self.tell(StageCancelled(StageId(waiting[choice % len(waiting)].stage_id)))

    def _leave(self, kind: str, size: int, choice: int) -> list[Sending]:
        if not self.at_node:
            return []
        self.now_s += 0.5
        sent = self.at_node.pop(list(self.at_node)[choice % len(self.at_node)])
        if kind == "refuse":
            return self.tell(StageRefused(sent.stage_id, sent.attempt, "no room"))
        self.tell(StageStarted(sent.stage_id, sent.attempt))
        usage = Usage(50, size)
        return self.tell(StageEnded(sent.stage_id, sent.attempt, Outcome.FINISHED, True, usage))

    def held(self, name: str) -> tuple[int, int]:
        """Stages at a node, and the batch ones among them, by the effects alone."""
        here = [sent for sent in self.at_node.values() if sent.node == NodeName(name)]
        return len(here), sum(sent.service_class is ServiceClass.BATCH for sent in here)
