"""A pool of keep-alive connections to one peer."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Mapping
from urllib.parse import urlsplit

from maestroctl.live.http1.connection import Connection, Response

_IDLE_LIMIT_S = 3.0
"""An idle connection older than this is not used again: uvicorn, under vLLM, closes after 5 s."""
_CONNECT_LIMIT_S = 10.0


class HttpPool:
    """Connections to one peer. There is no limit on them: the scheduler bounds what is in flight.

    Args:
        base_url: scheme, host and an optional path prefix; for a Unix socket any host will do.
        socket_path: Unix socket, in place of the URL's host and port.
        headers: sent with every request.
    """

    def __init__(
        self,
        base_url: str = "http://node",
        socket_path: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        self._socket_path = socket_path
        self._host = parts.hostname or "node"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        fixed = {"Host": parts.netloc or "node", **(headers or {})}
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._prune_timer: asyncio.TimerHandle | None = None  # set while a connection is idle

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """See `request`."""
        return await self.request("POST", path, body, headers)

    async def request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Response:
        """Send a request; return when the head of its answer is there.

        Cancelling the call closes the connection, which the peer sees at once.

        Raises:
            HopError: the peer broke off before its answer.
            OSError: nobody listens there.
        """
        connection = self._take_idle() or await self._connect()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._fixed}{lines}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        try:
            return await connection.send([head.encode("latin-1"), body])
        except BaseException:
            connection.abort()
            raise

    def give_back(self, connection: Connection) -> None:
        """The connection is free again."""
        connection.idle_since_s = time.monotonic()
        self._idle.append(connection)
        if self._prune_timer is None:
            self._prune_after(_IDLE_LIMIT_S)

    def close(self) -> None:
        """Close every connection, those in use too."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()
        if self._prune_timer is not None:
            self._prune_timer.cancel()
            self._prune_timer = None

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._all.discard(connection)

    def _prune_after(self, delay_s: float) -> None:
        self._prune_timer = asyncio.get_running_loop().call_later(delay_s, self._prune)

    def _prune(self) -> None:
        """Close what has been idle too long: after a burst nobody may ask for it again."""
        self._prune_timer = None
        self._drop_old()
        if self._idle:
            left_s = self._idle[0].idle_since_s + _IDLE_LIMIT_S - time.monotonic()
            self._prune_after(max(0.1, left_s))

    def _drop_old(self) -> None:
        oldest_s = time.monotonic() - _IDLE_LIMIT_S
        while self._idle and self._idle[0].idle_since_s <= oldest_s:
            self._idle.popleft().abort()

    def _take_idle(self) -> Connection | None:
        self._drop_old()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            if self._socket_path is not None:
                _, connection = await loop.create_unix_connection(
                    lambda: Connection(self), self._socket_path
                )
            else:
                server_hostname = self._host if self._tls else None
                _, connection = await loop.create_connection(
                    lambda: Connection(self),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=server_hostname,
                )
        if not connection.is_closed:
            self._all.add(connection)
        return connection
