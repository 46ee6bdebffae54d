"""From the start of an engine to its first token.

Theory of operation::

    launch -> health answers -> (its port is really its own) -> one token
                  |                                                |
                  +-- process ends --> EngineStartFailed + log     +-- refused --> EngineStartFailed

See also: `managed`, which limits the time and takes readings afterwards.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from maestroctl.domain.ids import EngineId
from maestroctl.errors import EngineError, EngineStartFailed
from maestroctl.live.engine import procfs
from maestroctl.live.engine.base import EngineAddress
from maestroctl.live.engine.control import ControlClient
from maestroctl.live.engine.process import EngineProcess

_HEALTH_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Readiness:
    """One engine whose process was launched.

    Attributes:
        health_path: answers below 400 when it is up.
    """

    engine_id: EngineId
    process: EngineProcess
    control: ControlClient
    address: EngineAddress
    health_path: str

    async def wait(self, probe_limit_s: float) -> None:
        """Wait until it is healthy and has answered one token.

        Raises:
            EngineStartFailed: it ended, or refuses to generate.
        """
        await self._wait_healthy()
        await self._probe_or_exit(probe_limit_s)

    async def probe(self, limit_s: float) -> None:
        """Have one token generated.

        Raises:
            EngineError: it does not answer, or refuses.
        """
        model = self.address.model
        payload = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}
        status, body = await self.control.post_status("/v1/completions", payload, limit_s=limit_s)
        if 400 <= status < 500 and status not in (401, 403):
            # An embedding model has no completions.
            status, other = await self.control.post_status(
                "/v1/embeddings", {"model": model, "input": "1"}, limit_s=limit_s
            )
            body = other if status < 400 else body
        if status >= 400:
            raise EngineError(
                f"engine '{self.engine_id}' answered a one-token probe with {status}: "
                f"{body[:300].strip()}"
            )

    async def _wait_healthy(self) -> None:
        while True:
            self._check_running()
            if await self.control.is_reachable(self.health_path) and self._owns_its_port():
                return
            await asyncio.wait({self.process.exited}, timeout=_HEALTH_POLL_S)

    def _owns_its_port(self) -> bool:
        """Whether the server that answered is this engine. A socket file always is."""
        if self.address.socket_path is not None:
            return True
        port = int(self.address.base_url.rsplit(":", 1)[1])
        pids = [member.pid for member in self.process.find_members()]
        return procfs.owns_listening_port(pids, port)

    async def _probe_or_exit(self, limit_s: float) -> None:
        """Probe; an engine that ends meanwhile is reported as such, not as a lost connection."""
        probe = asyncio.ensure_future(self.probe(limit_s))
        try:
            first: set[asyncio.Future[Any]] = {probe, self.process.exited}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if probe.done() and probe.exception() is None:
                return
            # A broken connection often is the first sign of an exit that is about to show.
            await asyncio.wait({self.process.exited}, timeout=1.0)
            self._check_running()
            error = probe.exception()
            raise EngineStartFailed(
                f"engine '{self.engine_id}' is up but generates nothing: {error}"
                f"{self.process.quote_log()}"
            ) from error
        finally:
            probe.cancel()

    def _check_running(self) -> None:
        if self.process.exited.done():
            ended = self.process.exited.result()
            raise EngineStartFailed(
                f"engine '{self.engine_id}' {ended.describe()} before it was ready"
                f"{self.process.quote_log()}",
                hint=f"the whole log: {self.process.identity.log_path}",
            )
