"""A deep queue for `bench-core`: a `CoordinatorCore` and the events that a busy fleet sends it.

The fleet: 1,000 engines, four to a node, each model awake on twenty of them, all of them full. The
queue is kept at its depth: for every stage that ends one of the same model arrives, of the same job
or of a new one, so that fleets of every depth are equally busy. Among them come first bytes,
predictions, snapshots (one per node and second), cancelled and refused stages, timers, and now and
then a node that is lost and returns. A tenth of the stages leave the choice among four models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from random import Random

from maestroctl.domain.ids import ModelName, NodeName, StageId, TimerId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.domain.stage import ServiceClass, StageDescriptor
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.effects import (
    CancelTimer,
    CoordinatorEffect,
    DispatchStage,
    ResolveStage,
    SetTimer,
)
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
from maestroctl.testing.coordinator_builders import (
    make_engine,
    make_fleet,
    make_profile,
    make_snapshot,
    make_stage,
)

ENGINES = 1000
PER_NODE = 4
SLOTS = 9
STEP_S = 0.00125
"""Between two stages that end: 8,000 run at once for 10 s each."""
SNAPSHOT_EVERY = 3
CANCEL_EVERY, REFUSE_EVERY, LOSE_EVERY = 50, 100, 5000
STAGES_PER_JOB = 3
GROUP_SHARE, GROUP = 0.1, 4
"""Part of the stages that leave the choice among so many models, where there are as many."""
DEADLINES_S = (60.0, 120.0, 300.0, 600.0, None)


class CoreLoad:
    """A core with a full fleet; `events` makes what happens next.

    Args:
        policy: ordering and routing under test.
        models: how many share the engines; 1 = every engine runs the same.
        seed: of the load.
    """

    def __init__(self, policy: PolicySpec, models: int, seed: int = 1) -> None:
        self.models = [ModelName(f"m{number:02}") for number in range(models)]
        self._random = Random(seed)
        self._snapshots = dict(self._make_snapshots())
        fleet = make_fleet(self.models, list(self._snapshots), policy)
        self.core = CoordinatorCore(fleet, 1, max_queued=1_000_000)
        self.now_s = 0.0
        self._ids = count()
        self._jobs = count()
        self._job = ("", 0)
        self._sent: deque[tuple[StageId, int, ModelName]] = deque()
        self._live: dict[StageId, int] = {}
        self._timers: list[tuple[float, TimerId]] = []
        self._armed: dict[TimerId, float] = {}
        self._queued: list[tuple[StageId, ModelName]] = []
        self._ended = self.models[0]
        self._seq = 0

    def fill(self, depth: int) -> None:
        """Connect every node and queue `depth` stages behind full engines."""
        for snapshot in self._snapshots.values():
            self.take(NodeSnapshotReceived(snapshot, 0.005))
        for model in self.models:
            queued = self.core.num_queued
            while self.core.num_queued == queued:
                self.take(self._arrival(model))
        while self.core.num_queued < depth:
            self.take(self._arrival(self._popular()))

    def events(self, turns: int) -> Iterator[CoordinatorEvent]:
        """What happens, one at a time; `take` each before asking for the next."""
        nodes = list(self._snapshots)
        for turn in range(1, turns + 1):
            self.now_s += STEP_S
            yield from self._due_timers()
            yield from self._one_ends(refused=turn % REFUSE_EVERY == 0)
            arrival = self._arrival(self._ended)
            yield arrival
            prediction = self._prediction(arrival.stage.candidates)
            yield PredictionArrived(arrival.stage.stage_id, prediction)
            if turn % SNAPSHOT_EVERY == 0:
                yield self._snapshot(nodes[turn // SNAPSHOT_EVERY % len(nodes)])
            if turn % CANCEL_EVERY == 0:
                yield from self._one_is_cancelled()
            if turn % LOSE_EVERY == 0:
                node = nodes[turn // LOSE_EVERY % len(nodes)]
                yield NodeLost(node, "the link broke")
                self.now_s += STEP_S
                yield self._snapshot(node)

    def take(self, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        """Hand the event to the core, without a clock."""
        effects = self.core.handle(event, self.now_s)
        self.carry_out(effects)
        return effects

    def carry_out(self, effects: list[CoordinatorEffect]) -> None:
        """Remember what was sent, resolved and armed."""
        for effect in effects:
            if isinstance(effect, DispatchStage):
                self._sent.append((effect.stage_id, effect.attempt, effect.model))
                self._live[effect.stage_id] = effect.attempt
                self._seq = effect.seq
            elif isinstance(effect, ResolveStage):
                self._live.pop(effect.stage_id, None)
            elif isinstance(effect, SetTimer):
                self._armed[effect.timer_id] = effect.at_s
                heappush(self._timers, (effect.at_s, effect.timer_id))
            elif isinstance(effect, CancelTimer):
                self._armed.pop(effect.timer_id, None)

    # --- single events --------------------------------------------------------------------------

    def _one_ends(self, *, refused: bool) -> Iterator[CoordinatorEvent]:
        while self._sent:
            stage_id, attempt, model = self._sent.popleft()
            if self._live.get(stage_id) != attempt:
                continue  # it is over, or elsewhere by now
            del self._live[stage_id]
            if refused:
                refused = False
                yield StageRefused(stage_id, attempt, "no memory", retry_in_s=0.2)
                continue
            self._ended = model
            yield StageStarted(stage_id, attempt)
            tokens = self._random.randint(20, 400)
            yield StageEnded(stage_id, attempt, Outcome.FINISHED, True, Usage(300, tokens))
            return

    def _one_is_cancelled(self) -> Iterator[CoordinatorEvent]:
        queued, self._queued = self._queued, []
        for stage_id, model in self._random.sample(queued, min(1, len(queued))):
            self._live.pop(stage_id, None)
            yield StageCancelled(stage_id)
            yield self._arrival(model)

    def _popular(self) -> ModelName:
        return self.models[int(len(self.models) * self._random.random() ** 2)]

    def _arrival(self, model: ModelName) -> StageArrived:
        number = next(self._ids)
        job, stages = self._job
        if stages == 0 or self._random.random() < 1 / STAGES_PER_JOB:
            job, stages = f"j{next(self._jobs)}", 0
        self._job = (job, stages + 1)
        stage = self._describe(number, job, model)
        self._queued.append((stage.stage_id, model))
        return StageArrived(stage, self._prediction(stage.candidates))

    def _describe(self, number: int, job: str, model: ModelName) -> StageDescriptor:
        chance = self._random.random
        stage = make_stage(
            f"s{number:08}",
            job,
            self._candidates(model),
            self.now_s,
            prompt_tokens=int(100 + 2000 * chance()),
            external=chance() < 0.3,
            service_class=ServiceClass.BATCH if chance() < 0.5 else ServiceClass.INTERACTIVE,
            role=f"r{number % 5}",
        )
        after_s = DEADLINES_S[int(len(DEADLINES_S) * chance())]
        return stage if after_s is None else replace(stage, deadline_s=self.now_s + after_s)

    def _candidates(self, model: ModelName) -> tuple[ModelName, ...]:
        """The model, or a group that begins with it."""
        if len(self.models) < GROUP or self._random.random() >= GROUP_SHARE:
            return (model,)
        first = self.models.index(model)
        return tuple(self.models[(first + k) % len(self.models)] for k in range(GROUP))

    def _prediction(self, candidates: tuple[ModelName, ...]) -> Prediction:
        tokens = 20 + 400 * self._random.random()
        if len(candidates) == 1:
            return Prediction(tokens, 2 * tokens, source="model")
        return Prediction(
            tokens,
            2 * tokens,
            total_tokens={model: tokens * (1 + self._random.random()) for model in candidates},
            confidence={model: self._random.random() for model in candidates},
            source="model",
        )

    def _due_timers(self) -> Iterator[CoordinatorEvent]:
        while self._timers and self._timers[0][0] <= self.now_s:
            at_s, timer_id = heappop(self._timers)
            if self._armed.get(timer_id) == at_s:
                del self._armed[timer_id]
                yield TimerFired(timer_id)

    def _snapshot(self, node: NodeName) -> NodeSnapshotReceived:
        last = self._snapshots[node]
        snapshot = replace(last, as_of_s=self.now_s, applied_seq=self._seq)
        self._snapshots[node] = snapshot
        return NodeSnapshotReceived(snapshot, 0.004 + 0.002 * self._random.random())

    def _make_snapshots(self) -> Iterator[tuple[NodeName, NodeSnapshot]]:
        profiles = {
            m: replace(make_profile(m, max_batch=SLOTS - 1), max_model_len=8192)
            for m in self.models
        }
        shown = 0
        for number in range(ENGINES // PER_NODE):
            name = f"n{number:03}"
            models = list(
                dict.fromkeys(self.models[(shown + k) % len(self.models)] for k in range(PER_NODE))
            )
            engines = [make_engine(m, SLOTS, node=name) for m in models]
            while len(engines) < PER_NODE:
                more = make_engine(models[0], SLOTS, node=name)
                engines.append(
                    replace(more, engine_id=type(more.engine_id)(f"{name}/{len(engines)}"))
                )
            shown += PER_NODE
            yield NodeName(name), make_snapshot(name, engines, [profiles[m] for m in models])
