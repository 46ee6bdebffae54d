"""Development endpoints: pause, sleep, wake, abort, worker calls; and the stub's own.

They exist unless ``VLLM_SERVER_DEV_MODE=0``. Answers follow vLLM 0.32, hazards included: a call
that breaks the rules of ``/release_kv_cache_memory`` is answered with 500 and kills the engine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from maestroctl.testing.stub_engine.engine import StubEngine, WakeFailed
from maestroctl.testing.stub_engine.errors import send_error
from maestroctl.testing.stub_engine.http_server import Exchange, Handler

PAUSE_MODES = ("abort", "wait", "keep")


class BadQuery(Exception):
    """A query parameter or body vLLM refuses; answered with 400."""


class Query:
    """Query parameters of one request."""

    def __init__(self, exchange: Exchange) -> None:
        self._values = parse_qs(exchange.request.query, keep_blank_values=True)

    def get_list(self, name: str) -> list[str]:
        """Every value of a parameter."""
        return self._values.get(name, [])

    def get_choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """One of a few words."""
        value = self._values.get(name, [default])[-1]
        if value not in choices:
            raise BadQuery(f"1 validation error:\n  {name}: Input should be {', '.join(choices)}")
        return value

    def get_bool(self, name: str, default: bool) -> bool:
        """A flag, in the spellings of pydantic."""
        value = self._values.get(name, [str(default)])[-1].lower()
        if value not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
            raise BadQuery(f"1 validation error:\n  {name}: Input should be a valid boolean")
        return value in ("1", "true", "yes", "on")


class ControlApi:
    """Handlers of the development endpoints."""

    def __init__(self, engine: StubEngine) -> None:
        self._engine = engine

    async def pause(self, exchange: Exchange) -> None:
        """``POST /pause?mode=abort|wait|keep&clear_cache=true``"""
        query = Query(exchange)
        mode = query.get_choice("mode", "abort", PAUSE_MODES)
        await self._engine.pause(mode, clear_cache=query.get_bool("clear_cache", True))
        exchange.send_json(200, {"status": "paused"})

    async def resume(self, exchange: Exchange) -> None:
        """``POST /resume``"""
        self._engine.generation.resume()
        exchange.send_json(200, {"status": "resumed"})

    async def is_paused(self, exchange: Exchange) -> None:
        """``GET /is_paused``"""
        exchange.send_json(200, {"is_paused": self._engine.is_paused})

    async def sleep(self, exchange: Exchange) -> None:
        """``POST /sleep?level=0..2&mode=abort|wait|keep``"""
        query = Query(exchange)
        level = int(query.get_choice("level", "1", ("0", "1", "2")))
        await self._engine.sleep(level, query.get_choice("mode", "abort", PAUSE_MODES))
        exchange.send_json(200, {"status": "sleeping", "level": level})

    async def wake_up(self, exchange: Exchange) -> None:
        """``POST /wake_up[?tags=weights&tags=kv_cache]``"""
        tags = Query(exchange).get_list("tags") or None
        try:
            awake = await self._engine.wake(tags)
        except WakeFailed as error:
            send_error(self._engine, exchange, 500, str(error))
            return
        exchange.send_json(200, {"status": "awake" if awake else "sleeping", "tags": tags})

    async def is_sleeping(self, exchange: Exchange) -> None:
        """``GET /is_sleeping``"""
        exchange.send_json(200, {"is_sleeping": self._engine.is_sleeping})

    async def reset_prefix_cache(self, exchange: Exchange) -> None:
        """``POST /reset_prefix_cache?reset_running_requests=true``"""
        generation = self._engine.generation
        if Query(exchange).get_bool("reset_running_requests", False):
            generation.preempt_all()
            success = True
        else:
            success = not generation.running
        exchange.send_json(200, {"success": success})

    async def abort_requests(self, exchange: Exchange) -> None:
        """``POST /abort_requests {"request_ids": [...]}``; an empty list aborts everything."""
        ids = _json_body(exchange).get("request_ids")
        num_aborted = self._engine.generation.abort(ids or None)
        # vLLM reports how many it was asked for, known or not.
        count = len(ids) if ids else num_aborted
        exchange.send_json(200, {"status": "aborted", "aborted": count})

    async def release_kv_cache_memory(self, exchange: Exchange) -> None:
        """``POST /release_kv_cache_memory``: fatal without a completed pause."""
        generation = self._engine.generation
        if self._engine.is_paused and not generation.running and not generation.num_waiting:
            self._engine.memory.release(["kv_cache"])
            exchange.send_json(200, {"status": "kv_cache_released"})
            return
        message = "release_kv_cache_memory() requires a completed pause first"
        send_error(self._engine, exchange, 500, message)
        await asyncio.sleep(0.01)  # so that the answer leaves before the process does
        self._engine.die(message)

    async def collective_rpc(self, exchange: Exchange) -> None:
        """``POST /collective_rpc {"method": ...}``"""
        method = _json_body(exchange).get("method")
        if method is None:
            raise BadQuery("Missing 'method' in request body")
        try:
            result = await self._engine.call_worker(str(method))
        except LookupError as error:
            problem = f"Worker failed with error '{error.args[0]}'"
            message = f"Call to collective_rpc method failed: {problem}"
            send_error(self._engine, exchange, 500, message)
            return
        exchange.send_json(200, {"results": [result]})

    async def set_faults(self, exchange: Exchange) -> None:
        """``POST /stub/faults``: change failure switches; answers all of them."""
        try:
            self._engine.faults.update(_json_body(exchange))
        except ValueError as error:
            raise BadQuery(str(error)) from error
        exchange.send_json(200, self._engine.faults.as_dict())

    async def seen_requests(self, exchange: Exchange) -> None:
        """``GET /stub/requests``: the last generation requests, as they arrived."""
        seen = [
            {"path": one.path, "headers": one.headers, "body": one.body.decode(errors="replace")}
            for one in self._engine.seen
        ]
        exchange.send_json(200, {"requests": seen})


def _json_body(exchange: Exchange) -> dict[str, Any]:
    try:
        body = json.loads(exchange.request.body)
    except ValueError:
        raise BadQuery("Invalid JSON format") from None
    if not isinstance(body, dict):
        raise BadQuery("Request body must be a JSON object")
    return body


def control_handlers(engine: StubEngine) -> dict[tuple[str, str], Handler]:
    """The development endpoints, by method and path; none outside development mode."""
    api = ControlApi(engine)
    own: dict[tuple[str, str], Callable[[Exchange], Awaitable[None]]] = {
        ("POST", "/stub/faults"): api.set_faults,
        ("GET", "/stub/requests"): api.seen_requests,
    }
    if engine.options.dev_mode:
        own |= {
            ("POST", "/pause"): api.pause,
            ("POST", "/resume"): api.resume,
            ("GET", "/is_paused"): api.is_paused,
            ("POST", "/sleep"): api.sleep,
            ("POST", "/wake_up"): api.wake_up,
            ("GET", "/is_sleeping"): api.is_sleeping,
            ("POST", "/reset_prefix_cache"): api.reset_prefix_cache,
            ("POST", "/abort_requests"): api.abort_requests,
            ("POST", "/release_kv_cache_memory"): api.release_kv_cache_memory,
            ("POST", "/collective_rpc"): api.collective_rpc,
        }
    return {key: _checked(engine, call) for key, call in own.items()}


def _checked(engine: StubEngine, call: Callable[[Exchange], Awaitable[None]]) -> Handler:
    async def handler(exchange: Exchange) -> None:
        try:
            await call(exchange)
        except BadQuery as error:
            send_error(engine, exchange, 400, str(error))

    return handler
