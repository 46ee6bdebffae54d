"""The process: start-up, routing, signals, shutdown.

Start-up follows vLLM: the socket is bound first (a second server fails at once), the model loads,
only then does the server listen; until then a client is refused. On SIGTERM the server stops
listening and waits for open requests, which get neither data nor a close: the hazard a supervisor
must handle. A Unix socket file is left behind.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

import uvloop

from maestroctl.testing.stub_engine.api_control import control_handlers
from maestroctl.testing.stub_engine.api_info import info_handlers
from maestroctl.testing.stub_engine.api_openai import openai_handlers
from maestroctl.testing.stub_engine.engine import StubEngine
from maestroctl.testing.stub_engine.errors import send_no_route
from maestroctl.testing.stub_engine.http_server import Exchange, Handler, HttpServer
from maestroctl.testing.stub_engine.options import BLOCK_TOKENS, StubOptions, parse_options

GUARDED_PREFIXES = ("/v1", "/v2", "/inference")
"""Paths that need the API key, as in vLLM; the development endpoints need none."""

LISTEN_BACKLOG = 2048

_GRANDCHILD = {
    # A child of the engine forks once more and exits after its own child; both keep the engine's
    # environment. "session" escapes the process group too: only the environment tells whose it is.
    "group": "import os,signal; os.fork(); signal.pause()",
    "session": "import os,signal; os.fork() or os.setsid(); signal.pause()",
}


class Router:
    """Method and path to handler, with vLLM's answers for what does not exist."""

    def __init__(self, engine: StubEngine) -> None:
        self._engine = engine
        self._handlers: dict[tuple[str, str], Handler] = {
            **openai_handlers(engine),
            **info_handlers(engine),
            **control_handlers(engine),
        }
        self._paths = {path for _, path in self._handlers}
        self._keys = [f"Bearer {key}".encode() for key in engine.options.api_keys]

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Serve one request; a coroutine is returned for what takes time."""
        request = exchange.request
        if self._engine.options.request_id_headers:
            request_id = request.headers.get("x-request-id", "")
            exchange.extra_head = b"x-request-id: %b\r\n" % request_id.encode("latin-1")
        if self._keys and not self._is_allowed(exchange):
            exchange.send_json(401, {"error": "Unauthorized"})
            return None
        handler = self._handlers.get((request.method, request.path))
        if handler is not None:
            return handler(exchange)
        if request.path in self._paths:
            send_no_route(self._engine, exchange, 405, "Method Not Allowed")
        else:
            send_no_route(self._engine, exchange, 404, "Not Found")
        return None

    def _is_allowed(self, exchange: Exchange) -> bool:
        if not exchange.request.path.startswith(GUARDED_PREFIXES):
            return True
        given = exchange.request.headers.get("authorization", "").encode("latin-1")
        return any(hmac.compare_digest(given, key) for key in self._keys)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stub engine until it is told to stop; returns the exit status."""
    options = parse_options(sys.argv[1:] if argv is None else argv)
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.grandchild is not None:
        subprocess.Popen([sys.executable, "-S", "-E", "-c", _GRANDCHILD[options.grandchild]])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(options))
    except StartRefused as error:
        print(f"ERROR {error}", file=sys.stderr, flush=True)
        return 1


class StartRefused(Exception):
    """The engine cannot start; printed, exit status 1."""


async def _serve(options: StubOptions) -> int:
    sock = _bind(options)
    _print_noise(options.log_noise_kib)
    await asyncio.sleep(options.start_delay_s)
    if options.refuse_start:
        raise StartRefused("EngineCore failed to start: --refuse-start was given")
    _check_context_fits(options)
    engine = StubEngine(options)
    await engine.load()
    http = HttpServer(Router(engine))
    stop = asyncio.Event()
    _handle_signals(stop, options)
    listener = await _listen(http, sock, options)
    await stop.wait()
    listener.close()
    engine.generation.freeze()
    try:
        await asyncio.wait_for(http.idle.wait(), options.drain_limit_s)
    except TimeoutError:
        print("WARNING open requests were cut at shutdown", file=sys.stderr)
    sys.stderr.flush()
    # Past the interpreter's and the loop's own clean-up, which would remove the socket file.
    os._exit(0)


def _bind(options: StubOptions) -> socket.socket:
    try:
        if options.uds is not None:
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(options.uds)
        else:
            sock = socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((options.host, options.port))
    except OSError as error:
        where = options.uds or f"{options.host}:{options.port}"
        raise StartRefused(f"[Errno {error.errno}] {error.strerror}: {where}") from error
    sock.setblocking(False)
    return sock


def _check_context_fits(options: StubOptions) -> None:
    pool_tokens = options.num_blocks * BLOCK_TOKENS
    if options.max_model_len > pool_tokens:
        raise StartRefused(
            "To serve at least one request with the model's max seq len "
            f"({options.max_model_len}), {options.max_model_len * options.kv_bytes_per_token} "
            f"bytes of KV cache are needed, which is larger than the available {options.kv_bytes}."
            f" Try decreasing max_model_len (at most {pool_tokens})."
        )


def _print_noise(kib: int) -> None:
    line = "INFO loading " + "." * 114 + "\n"  # 128 bytes
    for _ in range(kib):
        sys.stderr.write(line * 8)
    sys.stderr.flush()


def _handle_signals(stop: asyncio.Event, options: StubOptions) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if not options.ignore_sigterm:
        loop.add_signal_handler(signal.SIGTERM, stop.set)


async def _listen(
    http: HttpServer, sock: socket.socket, options: StubOptions
) -> asyncio.AbstractServer:
    loop = asyncio.get_running_loop()
    if options.uds is not None:
        server = await loop.create_unix_server(http.connect, sock=sock, backlog=LISTEN_BACKLOG)
        where = f"unix socket {options.uds}"
    else:
        server = await loop.create_server(http.connect, sock=sock, backlog=LISTEN_BACKLOG)
        where = f"http://{options.host}:{sock.getsockname()[1]}"
    print(f"INFO vLLM API server version {options.version} (stub) on {where}", file=sys.stderr)
    print("INFO Application startup complete.", file=sys.stderr, flush=True)
    return server
