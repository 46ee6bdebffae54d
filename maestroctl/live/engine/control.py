"""HTTP to one engine, for control only: health, state, sleep, pause, probes.

Client traffic does not pass here (the relay opens its own connections). Foreign errors become
`EngineError` once, at this seam.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from maestroctl.errors import EngineError
from maestroctl.live.engine.base import EngineAddress
from maestroctl.live.http1.client import HttpPool
from maestroctl.live.http1.connection import HopError

QUICK_S = 10.0
"""Limit of requests that only read."""
SLOW_S = 600.0
"""Limit of requests that move weights."""


class ControlClient:
    """Requests to one engine. Owner: its adapter; close it when the engine is gone."""

    def __init__(self, address: EngineAddress, engine: str) -> None:
        self._engine = engine
        key = {"Authorization": f"Bearer {address.api_key}"} if address.api_key else {}
        self._pool = HttpPool(address.base_url, address.socket_path, key)

    async def close(self) -> None:
        """Close its connections."""
        self._pool.close()

    async def is_reachable(self, path: str) -> bool:
        """Whether a GET answers with a status below 400."""
        try:
            status, _ = await self._request("GET", path, None, QUICK_S)
        except EngineError:
            return False
        return status < 400

    async def get_json(self, path: str, *, limit_s: float = QUICK_S) -> dict[str, Any]:
        """GET an object.

        Raises:
            EngineError: no connection, a status of 400 or more, or no JSON object.
        """
        return await self._object("GET", path, None, limit_s)

    async def get_text(self, path: str, *, limit_s: float = QUICK_S) -> str:
        """GET text.

        Raises:
            EngineError: no connection, or a status of 400 or more.
        """
        status, body = await self._request("GET", path, None, limit_s)
        self._check("GET", path, status, body)
        return body

    async def post(
        self, path: str, payload: dict[str, Any] | None = None, *, limit_s: float = QUICK_S
    ) -> dict[str, Any]:
        """POST, with a JSON body where there is one. An empty answer gives an empty object.

        Raises:
            EngineError: no connection, a status of 400 or more, or an answer that is no object.
        """
        return await self._object("POST", path, payload, limit_s)

    async def post_status(
        self, path: str, payload: dict[str, Any], *, limit_s: float
    ) -> tuple[int, str]:
        """POST and return status and body whatever they are.

        Raises:
            EngineError: no connection.
        """
        return await self._request("POST", path, payload, limit_s)

    async def call_workers(self, method: str, *, limit_s: float = SLOW_S) -> list[dict[str, Any]]:
        """Call a method on every worker of the engine (`/collective_rpc`).

        Returns:
            One answer per worker.

        Raises:
            EngineError: the call failed, or a worker answered that it did.
        """
        path = "/collective_rpc"
        answer = await self.post(path, {"method": method}, limit_s=limit_s)
        results = answer.get("results")
        if not isinstance(results, list) or not all(isinstance(r, dict) for r in results):
            raise EngineError(f"engine '{self._engine}': {method} answered {str(answer)[:200]}")
        for result in results:
            if not result.get("ok"):
                raise EngineError(
                    f"engine '{self._engine}': {method} failed: {result.get('error', result)}"
                )
        return results

    async def _object(
        self, method: str, path: str, payload: dict[str, Any] | None, limit_s: float
    ) -> dict[str, Any]:
        status, body = await self._request(method, path, payload, limit_s)
        self._check(method, path, status, body)
        if not body.strip():
            return {}
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise EngineError(
                f"engine '{self._engine}': {method} {path} answered {body[:120]!r}, not an object"
            )
        return value

    async def _request(
        self, method: str, path: str, payload: dict[str, Any] | None, limit_s: float
    ) -> tuple[int, str]:
        body, headers = b"", {}
        if payload is not None:
            body, headers = json.dumps(payload).encode(), {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(method, path, body, headers)
        except TimeoutError:
            raise EngineError(
                f"engine '{self._engine}': {method} {path} was not answered in {limit_s:.0f} s"
            ) from None
        except (OSError, ValueError) as exc:
            raise EngineError(f"engine '{self._engine}': {method} {path}: {exc}") from exc

    async def _exchange(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, str]:
        try:
            response = await self._pool.request(method, path, body, headers)
        except HopError:
            if method != "GET":
                raise
            # The peer closed a kept connection as we asked; reading twice does no harm.
            response = await self._pool.request(method, path, body, headers)
        try:
            return response.status, (await response.read()).decode(errors="replace")
        finally:
            response.close()

    def _check(self, method: str, path: str, status: int, body: str) -> None:
        if status >= 400:
            raise EngineError(
                f"engine '{self._engine}': {method} {path} answered {status}: {body[:300].strip()}"
            )
