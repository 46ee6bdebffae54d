"""A bare reverse proxy: one hop of aiohttp that forwards and does nothing else.

The baseline for the gateway: two of these in a chain cost what two hops cost without any decision,
any count and any check. Streams are forwarded as they arrive, other answers whole.

Run it::

    python -m maestroctl.testing.bench.bare_proxy --listen /tmp/b.sock --upstream /tmp/e.sock
    python -m maestroctl.testing.bench.bare_proxy --listen 127.0.0.1:8081 --upstream /tmp/b.sock
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

import aiohttp
import uvloop
from aiohttp import web

from maestroctl.testing.bench.http_client import Target

HOP_HEADERS = frozenset(
    ("connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade")
)
"""Headers that concern one connection and are not forwarded."""


class BareProxy:
    """Forwards every request to one upstream."""

    def __init__(self, upstream: Target, session: aiohttp.ClientSession) -> None:
        host = "upstream" if upstream.path is not None else f"{upstream.host}:{upstream.port}"
        self._base = f"http://{host}"
        self._session = session

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Forward one request and its answer."""
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_HEADERS}
        body = await request.read()
        url = self._base + request.raw_path
        async with self._session.request(
            request.method, url, headers=headers, data=body or None, allow_redirects=False
        ) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_HEADERS}
            if answer.content_type != "text/event-stream":
                return web.Response(status=answer.status, headers=kept, body=await answer.read())
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response


def make_session(upstream: Target) -> aiohttp.ClientSession:
    """A client session without limits towards one upstream."""
    connector: aiohttp.BaseConnector
    if upstream.path is not None:
        connector = aiohttp.UnixConnector(upstream.path, limit=0)
    else:
        connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)


async def serve(listen: Target, upstream: Target) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with make_session(upstream) as session:
        # A client that leaves cancels its handler, which closes the upstream request.
        runner = web.ServerRunner(
            web.Server(BareProxy(upstream, session).handle), handler_cancellation=True
        )
        await runner.setup()
        site: web.BaseSite
        if listen.path is not None:
            site = web.UnixSite(runner, listen.path)
        else:
            site = web.TCPSite(runner, listen.host, listen.port, backlog=2048)
        await site.start()
        print(f"listening on {site.name}", flush=True)
        await stop.wait()
        await runner.cleanup()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one hop."""
    parser = argparse.ArgumentParser(prog="bare_proxy", description=__doc__)
    parser.add_argument("--listen", type=Target.parse, required=True)
    parser.add_argument("--upstream", type=Target.parse, required=True)
    args = parser.parse_args(argv)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(args.listen, args.upstream))
    return 0


if __name__ == "__main__":
    sys.exit(main())
