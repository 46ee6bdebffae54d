"""Load from the command line: closed-loop requests, or many streams at once.

Run it::

    python -m maestroctl.testing.bench.load_client unix:/tmp/e.sock --clients 32 --requests 20000
    python -m maestroctl.testing.bench.load_client 127.0.0.1:8080 --streams 1200 --tokens 50
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

import uvloop

from maestroctl.testing.bench.closed_loop import LoadResult, run_closed_loop
from maestroctl.testing.bench.http_client import DEFAULT_LIMIT_S, Target, build_request, chat_body
from maestroctl.testing.bench.streams import StreamResult, run_streams
from maestroctl.testing.proc import cpu_seconds


def _parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="load_client", description=__doc__)
    add = parser.add_argument
    add("target", type=Target.parse, help="unix:/path or host:port")
    add("--path", default="/v1/chat/completions")
    add("--model")
    add("--tokens", type=int, default=1, help="output tokens asked of a stub engine")
    add("--clients", type=int, default=32)
    add("--requests", type=int, default=10_000)
    add("--warmup", type=int, default=500)
    add("--streams", type=int, default=0, help="streams at once instead of closed-loop requests")
    add("--ramp", type=float, default=0.0, help="s over which streams are opened")
    add("--limit", type=float, default=DEFAULT_LIMIT_S, help="s for the whole run")
    add("--api-key")
    add("--pid", type=int, nargs="*", default=[], help="processes whose CPU time is reported")
    return parser.parse_args(argv)


async def _run(args: argparse.Namespace) -> dict[str, Any]:
    body = chat_body(f"TOKENS {args.tokens}", model=args.model, stream=args.streams > 0)
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    request = build_request(args.path, body, headers)
    cpu_before_s = cpu_seconds(args.pid)
    result: LoadResult | StreamResult
    if args.streams:
        result = await run_streams(
            args.target, request, streams=args.streams, ramp_s=args.ramp, limit_s=args.limit
        )
    else:
        result = await run_closed_loop(
            args.target,
            request,
            clients=args.clients,
            requests=args.requests,
            warmup=args.warmup,
            limit_s=args.limit,
        )
    figures = result.as_dict()
    if args.pid:
        figures["cpu_s"] = cpu_seconds(args.pid) - cpu_before_s
        figures["cores"] = figures["cpu_s"] / max(1e-9, result.duration_s)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run one load and print its figures as one JSON object."""
    args = _parse_args(argv)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_run(args))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
