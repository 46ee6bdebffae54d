"""``make soak-kv``: a million random operations on node cores; is Eq 4 ever broken?

Every episode is a node of its own, drawn from a seed: models, abilities, devices, budgets,
policies. `drive_randomly` lets stages come, leave and outgrow their bookings, engines fail and
die, memory be taken by others and given back, people and coordinators meddle; now and then the
daemon is restarted and adopts what is at rest. After every operation

* what the processes hold (`MemoryTruth`, told from the effects alone) is covered by the books,
  engine by engine, and no device holds more than its budget, but by as much as a budget was
  lowered under it or a process took more than its profile says;
* the stages forwarded to an engine are booked within its KV limit, and no limit is set below
  what is booked; a stage that outgrew its booking is the only way past it;
* the core's own invariants hold (`FakeNodeHost`).

Prints one JSON line. A violation ends the run with its seed and the last events.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field, fields
from typing import Any

from maestroctl.domain.engine import EngineReadings, EngineStatus, ResidencyTier
from maestroctl.domain.ids import HOST_DEVICE, EngineId, StageId
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.units import GIB
from maestroctl.scheduler.effects import ForwardStage, NodeEffect, SetKvLimit, StopEngine
from maestroctl.scheduler.events import (
    EngineAdopted,
    EpochAnnounced,
    MemoryRead,
    NodeEvent,
    StageOffered,
    StageOutgrew,
    StageRebooked,
    TransitionFinished,
)
from maestroctl.scheduler.node.engine_state import StagePlace
from maestroctl.scheduler.node_core import NodeCore
from maestroctl.testing.builders import (
    ALL_ABLE,
    ELASTIC,
    HOST_SLEEPER,
    SLEEPER,
    STARTER,
    EngineEffect,
    make_node_core,
)
from maestroctl.testing.memory_truth import MemoryTruth
from maestroctl.testing.node_host import FakeNodeHost, drive_randomly

MODEL_COUNTS = (3, 8, 20, 50)
EPISODE = 5_000
"""Operations of one node, in lives of `LIFE` operations between which its daemon is restarted."""
LIFE = 1_000
CALM = 5
"""So that engines live long enough to serve: trouble is one operation in nine."""
ABLE = (SLEEPER, HOST_SLEEPER, HOST_SLEEPER, STARTER, ELASTIC, ALL_ABLE)


@dataclass
class SoakHost(FakeNodeHost):
    """A fake host that keeps the truth about memory and checks the books against it.

    Attributes:
        booked: forwarded stages with the engine and the bytes they are booked with.
        wanted: tokens that offered stages are to be booked with.
        tail: the last events and effects.
        seen: counts of what only the host sees.
    """

    truth: MemoryTruth = field(init=False)
    booked: dict[StageId, tuple[EngineId, int]] = field(default_factory=dict)
    wanted: dict[StageId, int] = field(default_factory=dict)
    tail: deque[tuple[float, NodeEvent, list[NodeEffect]]] = field(
        default_factory=lambda: deque(maxlen=40)
    )
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__post_init__()
        managed = [e for e in self.core._state.engines.values() if e.abilities.managed]
        self.truth = MemoryTruth(
            {engine.engine_id: engine.need_profile() for engine in managed},
            [engine.engine_id for engine in managed if engine.abilities.can_sleep_host],
        )

    def send(self, event: NodeEvent) -> list[NodeEffect]:
        """Hand in one event; the truth before and after must respect the budgets."""
        self.seen["events"] += 1
        before = self._excess()
        self._foresee(event)
        effects = super().send(event)
        for device, excess in self._excess().items():
            assert isinstance(event, MemoryRead) or excess <= before[device], (
                f"{device} holds {excess} too much"
            )
        for engine_id in self.truth.processes:
            books = self.core._state.books.holding(engine_id)
            for device, size in self.truth.holds(engine_id).items():
                booked = books.get(device, 0)
                assert booked >= size, f"{engine_id} holds {size} on {device}, booked {booked}"
        return effects

    def _excess(self) -> Counter[str]:
        budgets = self.core._state.books.budgets
        total = self.truth.total()
        return Counter({d: total[d] - budgets[d] for d in budgets if total[d] > budgets[d]})

    def _foresee(self, event: NodeEvent) -> None:
        """What the event says about stages and memory."""
        if isinstance(event, StageOffered):
            self.wanted[event.stage_id] = max(event.booked_tokens, event.prompt_tokens)
        elif isinstance(event, StageOutgrew) and event.stage_id in self.booked:
            engine_id, size = self.booked[event.stage_id]
            grown = self.core._state.engines[engine_id].kv_bytes(event.num_tokens)
            self.booked[event.stage_id] = (engine_id, max(size, grown))
        elif isinstance(event, StageRebooked):
            self._foresee_booking(event)
        elif isinstance(event, MemoryRead):
            for engine_id, size in event.engines.items():
                self.truth.take_more(engine_id, size)

    def _foresee_booking(self, event: StageRebooked) -> None:
        """A correction counts for the attempt that is here and not on its way out."""
        stage = self.core._state.stages.get(event.stage_id)
        if stage is None or stage.attempt != event.attempt or stage.place is StagePlace.LEAVING:
            return
        self.seen["rebooked"] += 1
        tokens = max(event.booked_tokens, event.prompt_tokens)
        if event.stage_id in self.wanted:
            self.wanted[event.stage_id] = tokens
        else:
            size = self.core._state.engines[stage.engine_id].kv_bytes(tokens)
            self.booked[event.stage_id] = (stage.engine_id, size)

    def _write_log(self, event: NodeEvent, effects: list[NodeEffect]) -> None:
        self.tail.append((self.now_s, event, effects))

    def _carry_out(self, effect: NodeEffect) -> None:
        super()._carry_out(effect)
        if isinstance(effect, ForwardStage):
            engine = self.core._state.engines[effect.engine_id]
            size = engine.kv_bytes(self.wanted.pop(effect.stage_id))
            self.booked[effect.stage_id] = (effect.engine_id, size)
            if engine.abilities.managed:
                limit = self.truth.processes[effect.engine_id].kv_limit_bytes
                booked = self._booked_on(effect.engine_id)
                assert booked <= limit, f"{effect}: {booked} booked, limit {limit}"
        elif isinstance(effect, SetKvLimit):
            before = self.truth.processes[effect.engine_id].kv_limit_bytes
            least = min(before, self._booked_on(effect.engine_id))
            assert effect.kv_limit_bytes >= least, f"{effect} is below {least} booked"
            self.seen["limits_raised" if effect.kv_limit_bytes > before else "limits_lowered"] += 1
            self.truth.begin(effect)

    def _booked_on(self, engine_id: EngineId) -> int:
        running = self.core._state.engines[engine_id].running
        return sum(
            size
            for stage, (where, size) in self.booked.items()
            if where == engine_id and (stage in running)
        )

    def _begin(self, effect: EngineEffect) -> None:
        super()._begin(effect)
        self.truth.begin(effect)

    def finish(self, engine_id: EngineId, device_bytes: int = 0, host_bytes: int = 0) -> None:
        """An effect is carried out; what is read is the truth, whatever the driver says."""
        del device_bytes, host_bytes
        effect = self._answer(engine_id)
        readings = EngineReadings(0)
        self.truth.finish(effect)
        if isinstance(effect, StopEngine):
            self._process_gone(engine_id)
        else:
            readings = self._read(engine_id)
        self.send(TransitionFinished(engine_id, effect.generation, effect.effect_id, readings, 0.1))

    def _read(self, engine_id: EngineId) -> EngineReadings:
        held = self.truth.holds(engine_id)
        host = held.pop(HOST_DEVICE, 0)
        return EngineReadings(sum(held.values()), host)

    def _process_gone(self, engine_id: EngineId) -> None:
        super()._process_gone(engine_id)
        self.truth.remove(engine_id)

    def restart(self, core: NodeCore) -> None:
        """The daemon dies: what is at rest is adopted by the next one, the rest is gone."""
        budgets = dict(self.core._state.books.budgets)
        for engine_id in self.in_flight:
            self.truth.remove(engine_id)
        self.core, self.epoch, self.seq = core, self.epoch + 1, 0
        for table in (self.live, self.leaving, self.in_flight, self.answered, self.requests):
            table.clear()
        for more in (self.timers, self.booked, self.wanted, self.alive):
            more.clear()
        for engine_id in list(self.truth.processes):
            self._adopt(engine_id)
        self.send(MemoryRead(budgets))
        self.send(EpochAnnounced(self.epoch))

    def _adopt(self, engine_id: EngineId) -> None:
        process, status = self.truth.processes[engine_id], self.truth.status(engine_id)
        tier = ResidencyTier.DEVICE
        if status is not EngineStatus.IDLE:
            tier = ResidencyTier.HOST if process.on_host else ResidencyTier.DISK
        self.alive[engine_id] = 1
        event = EngineAdopted(
            engine_id,
            self.core._state.engines[engine_id].model,
            status,
            tier,
            process.kv_limit_bytes,
            self._read(engine_id),
            process.devices,
        )
        super().send(event)  # the others are not in the books yet


def draw_node(seed: int, num_models: int) -> NodeCore:
    """A node in need of memory: about one model in four, or in two, can be awake."""
    rng = random.Random(seed)
    models = [f"m{i:02d}" for i in range(num_models)]
    num_devices = rng.choice([1, 1, 2] if num_models < 8 else [1, 2, 4])
    each = max(12, num_models * 7 // rng.choice([2, 4]) // num_devices) * GIB
    return make_node_core(
        models,
        devices={f"cuda:{i}": each for i in range(num_devices)},
        host=rng.choice([0, 8, 4 * num_models]) * GIB,
        abilities={model: rng.choice(ABLE) for model in models},
        specs={
            model: {
                "max_batch": rng.choice([1, 4, 8]),
                "ttl_s": rng.choice([None, None, 20.0]),
                "pin": rng.random() < 0.03,
                "tensor_parallel": rng.choice([1, 1, 1, num_devices]),
            }
            for model in models
        },
        profiles={
            model: {"weights_bytes": rng.choice([1, 3, 6]) * GIB, "kv_pool_bytes": 3 * GIB}
            for model in models
        },
        policy=PolicySpec(
            group_wait_s=rng.choice([0.0, 0.0, 5.0, None]),
            drain_wait_s=rng.choice([0.0, 20.0]),
            residency=rng.choice(["lru", "value"]),
            degradation=rng.choice(["maestroctl", "maestroctl", "maestro", "lru", "abort_first"]),
        ),
    )


def soak(num_operations: int, num_models: int, seed: int) -> Counter[str]:
    """So many operations on nodes of so many models; counts of what happened.

    Raises:
        AssertionError: Eq 4, or another rule, is broken.
        InvariantViolation: the same, seen by the core.
    """
    counts: Counter[str] = Counter()
    while counts["operations"] < num_operations:
        host = SoakHost(draw_node(seed, num_models))
        try:
            _run_episode(host, seed, min(EPISODE, num_operations - counts["operations"]), counts)
        except Exception as error:
            last = "\n".join(f"{at_s:.3f} {event}: {effects}" for at_s, event, effects in host.tail)
            error.add_note(f"models {num_models}, seed {seed}; the last events:\n{last}")
            raise
        seed += 1
    return counts


def _run_episode(host: SoakHost, seed: int, operations: int, counts: Counter[str]) -> None:
    num_models = len(host.core._state.by_model)
    counts["nodes"] += 1
    for life in range(-(-operations // LIFE)):
        if life:
            host.restart(draw_node(seed, num_models))
            counts["restarts"] += 1
        for action in drive_randomly(host, seed * 1_000 + life, min(LIFE, operations), calm=CALM):
            counts["operations"] += 1
            counts[action] += 1
        stats = host.core.stats
        counts.update({f.name: getattr(stats, f.name) for f in fields(stats)})
    counts.update(host.seen)


def main() -> None:
    """Share the operations among the model counts; print one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--models", type=int, nargs="*", default=MODEL_COUNTS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began_s = time.perf_counter()
    total: Counter[str] = Counter()
    share = -(-options.operations // len(options.models))
    for num_models in options.models:
        total += soak(share, num_models, options.seed)
    document: dict[str, Any] = {
        "operations": total.pop("operations"),
        "violations": 0,
        "models": list(options.models),
        "seed": options.seed,
        "seconds": round(time.perf_counter() - began_s, 1),
        "happened": dict(sorted(total.items())),
    }
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
