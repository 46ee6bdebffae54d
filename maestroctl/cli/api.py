"""The coordinator as commands see it: its HTTP API, with errors a person can act on."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from maestroctl.errors import ConfigError, MaestroError, NodeUnreachable, RequestError

URL_VARIABLE = "MAESTROCTL_URL"
KEY_VARIABLE = "MAESTROCTL_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8080"

T = TypeVar("T")


class CoordinatorUnreachable(NodeUnreachable):
    """No coordinator answers."""


class CoordinatorApi:
    """Calls one coordinator. Use as an async context manager.

    Args:
        url: base URL; None = ``$MAESTROCTL_URL``, else the default address.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {self.url!r} does not begin with http:// or https://")
        key = os.environ.get(KEY_VARIABLE)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def __aenter__(self) -> CoordinatorApi:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=limits)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def get(self, path: str, **query: str | int) -> Any:
        """The JSON at `path`."""
        return await self._call("GET", path, params=query)

    async def post(self, path: str, body: Any = None) -> Any:
        """The JSON that comes back."""
        return await self._call("POST", path, json=body if body is not None else {})

    async def events(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """Server-sent events as JSON values."""
        try:
            async with self._session.get(self.url + path) as response:
                await self._check(response)
                async for line in response.content:
                    if line.startswith(b"data:"):
                        yield json.loads(line[5:])
        except aiohttp.ClientError as exc:
            raise self._unreachable(exc) from exc

    async def _call(self, method: str, path: str, **options: Any) -> Any:
        try:
            async with self._session.request(method, self.url + path, **options) as response:
                await self._check(response)
                return await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise self._unreachable(exc) from exc

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status < 400:
            return
        text = await response.text(errors="replace")
        try:
            error = json.loads(text)["error"]
            message, code = str(error["message"]), str(error.get("code"))
        except (ValueError, KeyError, TypeError):
            message, code = text[:300] or response.reason or "no text", ""
        failure = RequestError(message, code=code or None)
        failure.http_status = response.status
        if response.status == 401:
            failure.hint = f"set {KEY_VARIABLE} to one of the coordinator's API keys"
        raise failure

    def _unreachable(self, exc: BaseException) -> MaestroError:
        return CoordinatorUnreachable(
            f"no coordinator answers at {self.url} ({exc or type(exc).__name__})",
            hint=f"start one with `maestroctl serve`, or set --url or {URL_VARIABLE}",
        )


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine on the same kind of loop that the servers use."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def read_text_argument(value: str) -> str:
    """``-`` and ``@FILE`` stand for standard input and a file; anything else is the text.

    Raises:
        ConfigError: the file cannot be read.
    """
    import sys

    if value == "-":
        return sys.stdin.read()
    if value.startswith("@"):
        try:
            return Path(value[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"cannot read {value[1:]}: {exc}") from exc
    return value
