"""Benchmark of the gateway: what two hops of the product cost, beside a bare proxy and LiteLLM.

Everything is measured in one run on one machine with stub engines, which answer at once:

* one client, requests of 1 KiB: added latency against a call to the engine's own socket, and the
  same of two hops of a bare aiohttp proxy;
* 32 clients: requests per second of the product, the bare proxy, and a LiteLLM proxy;
* 1,200 streams at once over four engines with 5 tokens/s each: answers, processor time, memory and
  descriptors of both hops;
* memory of both hops around 10,000 requests.

Run it::

    python -m maestroctl.testing.bench.gateway [--quick] [--skip-litellm] [--repeats N]

The last line is one JSON object. A missed target does not change the exit code, which is 0 when
everything could be measured.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from maestroctl.config.home import home_dir
from maestroctl.testing.bench import litellm_proxy
from maestroctl.testing.bench.command import Report, make_parser, run_bench, say
from maestroctl.testing.bench.gateway_report import make_figures, make_sections
from maestroctl.testing.bench.gateway_runs import (
    BARE,
    DIRECT,
    LITELLM,
    OURS,
    Measured,
    Sizes,
    measure_growth,
    measure_latency,
    measure_load,
    measure_wave,
)
from maestroctl.testing.bench.http_client import Target
from maestroctl.testing.bench.processes import (
    BenchError,
    LoadOfOthers,
    free_port,
    listens,
    module_argv,
    running,
)
from maestroctl.testing.bench.product import Product, running_product

MODELS = ("alpha", "beta", "gamma", "delta")
_KV_CACHE = "256 MiB"
"""For 300 streams of one engine with room: 1 KiB per token, booked in blocks."""


async def measure(sizes: Sizes, *, with_litellm: bool) -> Measured:
    """Start everything, measure, stop everything.

    Raises:
        BenchError: something that is needed does not start.
    """
    measured = Measured(sizes)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="maestro-bench-")))
        say("starting the product with four stub engines")
        product = await stack.enter_async_context(
            running_product(folder, MODELS, max_batch=512, kv_cache=_KV_CACHE)
        )
        measured.first_rss_bytes = product.rss_bytes()
        measured.first_descriptors = product.num_descriptors()
        direct = product.engines[MODELS[0]]
        bare, bare_pids = await stack.enter_async_context(_running_bare(folder, direct))
        litellm, litellm_pids = await _start_litellm(stack, folder, measured, with_litellm)
        pids = [*product.hops, *product.engine_pids, *bare_pids, *litellm_pids]
        load = LoadOfOthers(pids)
        begin = os.getloadavg()[0]
        loads = {OURS: product.target, BARE: bare} | ({LITELLM: litellm} if litellm else {})
        paths = {DIRECT: direct, BARE: bare, OURS: product.target}
        for number in range(sizes.repeats):
            say(f"latency and throughput, repeat {number + 1} of {sizes.repeats}")
            await measure_latency(measured, paths, MODELS[0])
            await measure_load(measured, loads, MODELS[0])
        say(f"memory over {sizes.growth_requests} requests")
        await measure_growth(measured, product, MODELS[0])
        await _measure_streams(measured, product)
        measured.others_cores = load.cores()
        measured.load_average = (begin, os.getloadavg()[0])
    return measured


async def _measure_streams(measured: Measured, product: Product) -> None:
    sizes = measured.sizes
    # Only now: the product was started under the limit that a user's shell has.
    _raise_descriptor_limit(sizes.streams)
    await product.set_token_interval(sizes.token_interval_s)
    for number in range(sizes.stream_waves):
        say(f"{sizes.streams} streams, wave {number + 1} of {sizes.stream_waves}")
        await measure_wave(measured, product, MODELS)
    await product.set_token_interval(0.0)


@asynccontextmanager
async def _running_bare(folder: Path, engine: Target) -> AsyncIterator[tuple[Target, list[int]]]:
    """Two hops of the bare proxy, over the same kinds of sockets as the product's."""
    module = "maestroctl.testing.bench.bare_proxy"
    inner = Target(path=str(folder / "bare.sock"))
    outer = Target(host="127.0.0.1", port=free_port())
    listen = f"{outer.host}:{outer.port}"
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            running(
                module_argv(module, "--listen", str(inner.path), "--upstream", str(engine.path)),
                folder / "bare-inner.log",
                lambda: listens(inner),
            )
        )
        second = await stack.enter_async_context(
            running(
                module_argv(module, "--listen", listen, "--upstream", str(inner.path)),
                folder / "bare-outer.log",
                lambda: listens(outer),
            )
        )
        yield outer, [first.pid, second.pid]


async def _start_litellm(
    stack: AsyncExitStack, folder: Path, measured: Measured, wanted: bool
) -> tuple[Target | None, list[int]]:
    """LiteLLM and a stub on TCP, because it cannot call a Unix socket; None when it is left out."""
    if not wanted:
        measured.litellm_problem = "left out by --skip-litellm"
        return None, []
    try:
        program = await litellm_proxy.ensure_environment(
            home_dir(os.environ) / "bench" / "litellm", say
        )
        measured.litellm_version = await litellm_proxy.read_version(program)
        say(f"starting LiteLLM {measured.litellm_version}")
        stub = Target(host="127.0.0.1", port=free_port())
        argv = module_argv("maestroctl.testing.stub_engine", "--port", str(stub.port))
        argv += ["--served-model-name", MODELS[0]]
        engine = await stack.enter_async_context(
            running(argv, folder / "litellm-stub.log", lambda: listens(stub))
        )
        target, pid = await stack.enter_async_context(
            litellm_proxy.running_litellm(program, folder, MODELS[0], stub)
        )
    except (BenchError, OSError) as exc:
        measured.litellm_problem = str(exc)
        say(f"LiteLLM is left out: {exc}")
        return None, []
    return target, [engine.pid, pid]


def _raise_descriptor_limit(streams: int) -> None:
    """Every stream is a connection of this process, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = streams + 256
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise BenchError(f"{streams} streams need {needed} open files; the limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("gateway", __doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="little of everything; no figures to quote")
    add("--skip-litellm", action="store_true", help="leave the comparison with LiteLLM out")
    add("--repeats", type=int, help="of latency and throughput, and waves of streams")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and the line of JSON."""
    args = _parse(argv)
    sizes = Sizes.quick() if args.quick else Sizes()
    if args.repeats:
        sizes = replace(sizes, repeats=args.repeats, stream_waves=args.repeats)

    def report(measured: Measured) -> Report:
        sections, notes = make_sections(measured)
        return Report(
            "Gateway and node daemon, both hops, on stub engines",
            sections,
            make_figures(measured),
            notes,
        )

    return run_bench("gateway", measure(sizes, with_litellm=not args.skip_litellm), report)


if __name__ == "__main__":
    sys.exit(main())
