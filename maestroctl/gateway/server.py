"""Listens: the gateway's sockets, from start over drain to stop."""

from __future__ import annotations

import errno
import logging
import os
import resource
from types import TracebackType

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from maestroctl.errors import ConfigError
from maestroctl.gateway.app import GATEWAY
from maestroctl.gateway.auth import is_loopback

_BACKLOG = 1024
_KEEPALIVE_S = 300.0
"""Idle connections are kept this long: longer than the pools of common clients."""
_MAX_LINE = 16 << 10
"""Bytes of a request line and of one header."""
_STOP_S = 5.0
"""Ending the open requests may take this long."""
_SOCKETS_PER_REQUEST = 2
"""The caller's and the one to the node."""
_OTHER_FILES = 512

_log = logging.getLogger(__name__)


class GatewayServer:
    """One listener of an application made by `create_app`.

    Args:
        host: address or name to bind.
        port: 0 = any free one; `port` says which after `start`.
    """

    def __init__(self, app: web.Application, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._gateway = app[GATEWAY]
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,  # a lost connection cancels its handler at once
            keepalive_timeout=_KEEPALIVE_S,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_LINE,
            shutdown_timeout=_STOP_S,
            logger=_quiet_logger(),
        )

    @property
    def url(self) -> str:
        """Base URL, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def held(self) -> int:
        """Inference requests open now."""
        return self._gateway.gate.held

    async def start(self) -> None:
        """Bind and listen.

        Raises:
            ConfigError: the address is taken or not ours, or it is open to others without keys.
        """
        if not is_loopback(self.host) and not self._gateway.keys.required:
            raise ConfigError(
                f"listening on {self.host} needs API keys, or anybody could use the gateway",
                key="coordinator.api_keys_file",
                hint="Name a file with one key per line, or listen on 127.0.0.1.",
            )
        _raise_descriptor_limit(_SOCKETS_PER_REQUEST * self._gateway.gate.max_held + _OTHER_FILES)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self.host, self.port, backlog=_BACKLOG).start()
        except OSError as exc:
            await self._runner.cleanup()
            raise self._bind_error(exc) from exc
        self.port = self._runner.addresses[0][1]

    def _bind_error(self, exc: OSError) -> ConfigError:
        in_use = exc.errno == errno.EADDRINUSE
        return ConfigError(
            f"cannot listen on {self.host}:{self.port}: {_reason(exc)}",
            key="coordinator.listen",
            hint="Another program listens there; stop it or choose another port."
            if in_use
            else None,
        )

    async def drain(self, timeout_s: float) -> bool:
        """Answer new requests with 503 and wait for the open ones.

        Returns:
            Whether all of them finished in time.
        """
        return await self._gateway.gate.drain(timeout_s)

    async def stop(self) -> None:
        """End what is still open, visibly, and close the sockets. Idempotent."""
        await self._gateway.gate.stop(_STOP_S)
        await self._runner.cleanup()

    async def __aenter__(self) -> GatewayServer:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()


def _reason(exc: OSError) -> str:
    """In the system's words; the event loop puts the address that we have said into its own."""
    known = exc.errno in errno.errorcode
    return os.strerror(exc.errno) if known and exc.errno else exc.strerror or str(exc)


def _raise_descriptor_limit(needed: int) -> None:
    """Raise the soft limit of open files as far as `max_held` needs it and the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < needed:
        _log.warning(
            "max_held may need %d open files, the limit of this process is %d; raise `ulimit -Hn`",
            needed,
            wanted,
        )


class _NoNoise(logging.Filter):
    """Broken HTTP from the outside is no error of ours: it is answered 400, not logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError)


def _quiet_logger() -> logging.Logger:
    logger = logging.getLogger("maestroctl.gateway.http")
    if not any(isinstance(known, _NoNoise) for known in logger.filters):
        logger.addFilter(_NoNoise())
    return logger
