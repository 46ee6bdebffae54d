"""Stage times of a batch: the same as the simulator's engine gives."""

from __future__ import annotations

import random

import pytest

from maestroctl.domain.llm import IterationCost
from maestroctl.estimate.batch_time import estimate_batch_s
from maestroctl.sim.device import Device
from maestroctl.sim.engine_model import EngineModel
from maestroctl.sim.loop import EventLoop
from maestroctl.sim.sequence import Sequence

COST = IterationCost(c0_s=0.03, c1_s=0.001, c2_s=1e-6, cp_s=0.001)


def simulate(requests: list[tuple[int, int]], max_batched_tokens: int) -> list[float]:
    loop = EventLoop()
    ends: dict[str, float] = {}
    engine = EngineModel(
        loop,
        Device(),
        COST,
        max_num_seqs=len(requests),
        max_num_batched_tokens=max_batched_tokens,
        on_first_token=lambda _: None,
        on_finish=lambda name: ends.__setitem__(name, loop.now_s),
    )
    for place, (prompt, output) in enumerate(requests):
        engine.submit(Sequence(str(place), 0.0, prompt, output, prompt + output))
    loop.run(1e9)
    return [ends[str(place)] for place in range(len(requests))]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_simulators_engine(seed: int) -> None:
    rng = random.Random(seed)
    requests = [(rng.randint(1, 600), rng.randint(1, 60)) for _ in range(rng.randint(1, 12))]
    limit = rng.choice([64, 256, 2048])
    assert estimate_batch_s(COST, requests, limit) == pytest.approx(simulate(requests, limit))


def test_one_request_is_its_prefill_and_its_tokens() -> None:
    (seconds,) = estimate_batch_s(IterationCost(0.03, 0.0, 0.0, 0.001), [(100, 5)], 256)
    assert seconds == pytest.approx(0.03 + 0.1 + 4 * 0.03)
