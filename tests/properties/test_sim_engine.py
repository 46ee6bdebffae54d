"""The token clock beside an engine that takes every iteration one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maestroctl.domain.llm import IterationCost
from maestroctl.sim.device import Device
from maestroctl.sim.engine_model import EngineModel
from maestroctl.sim.loop import EventLoop
from maestroctl.sim.sequence import Sequence


@dataclass
class Stage:
    """One arrival, and how far it has come in the slow engine."""

    name: str
    at_s: float
    prompt: int
    output: int
    key: float
    context: int = 0
    todo: int = 0
    left: int = 0
    first_s: float = math.nan
    end_s: float = math.nan


@dataclass(frozen=True)
class Limits:
    seqs: int
    batched: int
    kv: float


def run_slowly(stages: list[Stage], cost: IterationCost, limits: Limits) -> None:
    """Every rule of the module's text, one iteration at a time."""
    for stage in stages:
        stage.context = stage.todo = stage.prompt
        stage.left = stage.output
    coming = sorted(stages, key=lambda s: s.at_s)
    order = {stage.name: number for number, stage in enumerate(coming)}
    waiting: list[Stage] = []
    prefilling: list[Stage] = []
    decoding: list[Stage] = []
    now_s = 0.0
    while coming or waiting or prefilling or decoding:
        if not (waiting or prefilling or decoding):
            now_s = max(now_s, coming[0].at_s)
        while coming and coming[0].at_s <= now_s + 1e-12:
            waiting.append(coming.pop(0))

        def used() -> int:
            return sum(s.context for s in decoding) + sum(s.context for s in prefilling)

        while len(decoding) > 1 and used() + len(decoding) > limits.kv:
            last = max(decoding, key=lambda s: (s.key, order[s.name]))
            decoding.remove(last)
            last.todo = last.context
            waiting.append(last)
        waiting.sort(key=lambda s: (s.key, order[s.name]))
        while waiting:
            running = len(decoding) + len(prefilling)
            fits = used() + waiting[0].context + len(decoding) <= limits.kv
            if running and (running >= limits.seqs or not fits):
                break
            prefilling.append(waiting.pop(0))
        room = max(1, limits.batched - len(decoding))
        tokens = min(room, sum(s.todo for s in prefilling))
        now_s += (
            cost.c0_s
            + cost.c1_s * len(decoding)
            + cost.c2_s * sum(s.context for s in decoding)
            + cost.cp_s * tokens
        )
        for stage in list(decoding):
            stage.context += 1
            stage.left -= 1
            if not stage.left:
                stage.end_s = now_s
                decoding.remove(stage)
        for stage in list(prefilling):
            taken = min(tokens, stage.todo)
            tokens -= taken
            stage.todo -= taken
            if stage.todo:
                continue
            prefilling.remove(stage)
            stage.context += 1
            stage.left -= 1
            if math.isnan(stage.first_s):
                stage.first_s = now_s
            if stage.left:
                decoding.append(stage)
            else:
                stage.end_s = now_s


def run_by_clock(
    stages: list[Stage], cost: IterationCost, limits: Limits
) -> tuple[dict[str, float], dict[str, float]]:
    loop = EventLoop()
    first: dict[str, float] = {}
    end: dict[str, float] = {}
    engine = EngineModel(
        loop,
        Device(),
        cost,
        max_num_seqs=limits.seqs,
        max_num_batched_tokens=limits.batched,
        kv_tokens=limits.kv,
        on_first_token=lambda name: first.setdefault(name, loop.now_s) and None,
        on_finish=lambda name: end.setdefault(name, loop.now_s) and None,
    )
    for s in sorted(stages, key=lambda s: s.at_s):
        loop.at(s.at_s, engine.submit, Sequence(s.name, s.key, s.prompt, s.output, 1 << 30))
    loop.run()
    assert engine.num_sequences == 0
    assert engine.kv_used_tokens == 0
    return first, end


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 400),  # centiseconds, off the grid of iterations
        st.integers(1, 60),
        st.integers(1, 60),
        st.sampled_from([0.0, 1.0]),
    ),
    min_size=1,
    max_size=12,
)


@given(
    arrivals=ARRIVALS,
    seqs=st.integers(1, 5),
    batched=st.sampled_from([8, 16, 64]),
    kv=st.sampled_from([130, 200, 1000, math.inf]),
    c2=st.sampled_from([0.0, 1e-4]),
)
@settings(max_examples=150, deadline=None)
def test_the_clock_agrees_with_every_single_iteration(
    arrivals: list[tuple[int, int, int, float]], seqs: int, batched: int, kv: float, c2: float
) -> None:
    cost = IterationCost(c0_s=0.0101, c1_s=0.00107, c2_s=c2, cp_s=0.00031)
    stages = [
        # Distinct times, and none that meets the end of an iteration by chance.
        Stage(f"s{i}", 0.01 * at + 1e-5 * (i + 1) * math.pi, prompt, output, key)
        for i, (at, prompt, output, key) in enumerate(arrivals)
    ]
    limits = Limits(seqs, batched, kv)
    first, end = run_by_clock(stages, cost, limits)
    run_slowly(stages, cost, limits)
    for stage in stages:
        assert end[stage.name] == pytest.approx(stage.end_s, abs=1e-6)
        assert first[stage.name] == pytest.approx(stage.first_s, abs=1e-6)


@given(arrivals=ARRIVALS, moments=st.lists(st.integers(0, 500), min_size=1, max_size=6))
@settings(max_examples=80, deadline=None)
def test_suspending_aborting_and_limits_lose_nothing(
    arrivals: list[tuple[int, int, int, float]], moments: list[int]
) -> None:
    """Every stage ends exactly once, finished or gone, whatever happens to the engine."""
    loop = EventLoop()
    ended: list[str] = []
    engine = EngineModel(
        loop,
        Device(),
        IterationCost(0.01, 0.001, 1e-5, 0.0003),
        max_num_seqs=3,
        max_num_batched_tokens=16,
        kv_tokens=200,
        on_first_token=lambda _name: None,
        on_finish=ended.append,
        on_gone=ended.append,
    )
    for i, (at, prompt, output, key) in enumerate(arrivals):
        loop.at(0.01 * at, engine.submit, Sequence(f"s{i}", key, prompt, output, prompt + 3))

    def abort() -> None:
        open_names = sorted(engine._all)
        if open_names:
            engine.abort(open_names[0])

    for number, moment in enumerate(moments):
        at_s = 0.0101 * moment
        if number % 3 == 0:
            loop.at(at_s, engine.suspend)
            loop.at(at_s + 0.5, engine.resume)
        elif number % 3 == 1:
            loop.at(at_s, abort)
        else:
            loop.at(at_s, engine.set_kv_tokens, 150)
    loop.at(20.0, engine.resume)
    loop.run()
    assert sorted(ended) == sorted(f"s{i}" for i in range(len(arrivals)))
    assert engine.num_sequences == 0
    assert engine.kv_used_tokens == 0
