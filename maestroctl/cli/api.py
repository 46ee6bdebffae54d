"""The coordinator as commands see it: its HTTP API, with errors a person can act on."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp

from maestroctl.cli.runtime import run_async
from maestroctl.errors import ConfigError, InvalidRequest, NodeUnreachable, RequestError

URL_VARIABLE = "MAESTROCTL_URL"
KEY_VARIABLE = "MAESTROCTL_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8080"
_CONNECT_S = 5.0
_SILENCE_S = 60.0
"""An event stream says something at least every heartbeat; after this it is taken for dead."""
_MAX_EVENT_BYTES = 1 << 20


class CoordinatorUnreachable(NodeUnreachable):
    """No coordinator answers, or the connection to it broke."""


class CoordinatorApi:
    """Calls one coordinator. Use as an async context manager.

    Args:
        url: base URL; None = ``$MAESTROCTL_URL``, else the default address.

    Raises:
        ConfigError: the URL is not one.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = (url or os.environ.get(URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        self.url = self.url.removesuffix("/v1")  # people paste the OpenAI base URL
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"the coordinator's address {self.url!r} does not begin with http:// or https://",
                hint=f"for instance --url {DEFAULT_URL}",
            )
        key = os.environ.get(KEY_VARIABLE)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def __aenter__(self) -> CoordinatorApi:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            timeout=limits,
            connector=aiohttp.TCPConnector(limit=0),
            read_bufsize=_MAX_EVENT_BYTES,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def get(self, path: str, **query: str | int) -> Any:
        """The JSON at `path`."""
        return await self._call("GET", path, params=query)

    async def post(self, path: str, body: Any = None) -> Any:
        """The JSON that comes back."""
        return await self._call("POST", path, json=body if body is not None else {})

    async def events(self, path: str) -> AsyncGenerator[dict[str, Any] | None, None]:
        """Server-sent events as JSON values; None once the stream is open and per heartbeat.

        Ends when the coordinator ends it.

        Raises:
            CoordinatorUnreachable: the connection broke or fell silent.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
        try:
            async with self._session.get(self.url + path, timeout=limits) as response:
                await self._check(response)
                async for line in response.content:
                    if line.startswith(b"data:"):
                        yield json.loads(line[5:])
                    elif line.startswith(b":"):
                        yield None
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise self._unreachable(exc) from exc

    async def _call(self, method: str, path: str, **options: Any) -> Any:
        try:
            async with self._session.request(method, self.url + path, **options) as response:
                await self._check(response)
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise self._unreachable(exc) from exc
        except ValueError as exc:
            raise _no_coordinator(self.url, f"{path} gave no JSON") from exc
        if not isinstance(answer, dict):
            raise _no_coordinator(self.url, f"{path} gave no object")
        return _Answer(answer, self.url, path)

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status >= 400:
            raise _error_of(response.status, await response.text(errors="replace"), self.url)

    def _unreachable(self, exc: BaseException) -> CoordinatorUnreachable:
        cause = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        if "Connect call failed" in reason:
            reason = "connection refused"
        return CoordinatorUnreachable(
            f"no coordinator answers at {self.url} ({reason})",
            hint=f"start one with `maestroctl serve`, or set --url or {URL_VARIABLE}",
        )


class _Answer(dict[str, Any]):
    """An answer, whose missing keys say that something else gave it: Ollama has `/api/ps`, too."""

    def __init__(self, values: dict[str, Any], url: str, path: str) -> None:
        super().__init__(values)
        self._url = url
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise _no_coordinator(self._url, f"{self._path} gave no {key!r}")


def _no_coordinator(url: str, found: str) -> CoordinatorUnreachable:
    return CoordinatorUnreachable(
        f"what answers at {url} is not a coordinator of this version: {found}",
        hint=f"set --url or {URL_VARIABLE} to the address that `maestroctl serve` printed",
    )


def _error_of(status: int, text: str, url: str) -> Exception:
    """The coordinator's error body as an exception; something else's as a wrong address."""
    try:
        error = json.loads(text)["error"]
        message, code, param = str(error["message"]), error.get("code"), error.get("param")
    except (ValueError, KeyError, TypeError):
        return _no_coordinator(url, f"status {status}")
    kind = InvalidRequest if status == 400 else RequestError
    failure = kind(message, code=code, param=param)
    failure.http_status = status
    if status == 401:
        failure.hint = f"set {KEY_VARIABLE} to one of the coordinator's API keys"
    return failure


def get_once(url: str | None, path: str, **query: str | int) -> Any:
    """One GET, for commands that ask one thing."""

    async def call() -> Any:
        async with CoordinatorApi(url) as api:
            return await api.get(path, **query)

    return run_async(call())


def post_once(url: str | None, path: str, body: Any = None) -> Any:
    """One POST."""

    async def call() -> Any:
        async with CoordinatorApi(url) as api:
            return await api.post(path, body)

    return run_async(call())
