"""An engine that somebody else runs: routed to, never started, put to sleep or stopped.

Two uses: `kind = "endpoint"` (a URL and a key), and attaching to a vLLM that already runs (a
`[[model]]` of a vLLM kind with `url`). A URL of `unix:/path/to.sock` names a Unix socket. Memory of
such an engine is not ours to book, and reads as 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

from maestroctl.domain.engine import EngineReadings, ResidencyTier
from maestroctl.domain.ids import EngineId
from maestroctl.domain.llm import EngineKind
from maestroctl.domain.units import format_seconds
from maestroctl.errors import CapabilityMissing, ConfigError, EngineError, ReadyTimeout
from maestroctl.live.engine.base import EngineAddress, EngineOrder, EngineState
from maestroctl.live.engine.capabilities import Capabilities, Capability
from maestroctl.live.engine.command import read_api_key
from maestroctl.live.engine.control import ControlClient
from maestroctl.live.engine.metrics import parse_metrics
from maestroctl.live.engine.process import EngineExit

_RETRY_S = 0.5
_PROBE_LIMIT_S = 60.0


class EndpointEngine:
    """One engine that is only talked to."""

    def __init__(self, order: EngineOrder) -> None:
        self._order = order
        self._address = parse_address(order)
        self._control = ControlClient(self._address, order.engine_id)
        self._features: frozenset[Capability] = frozenset()
        self._exited: asyncio.Future[EngineExit] = asyncio.get_running_loop().create_future()

    @property
    def engine_id(self) -> EngineId:
        """Its name on the node."""
        return self._order.engine_id

    @property
    def capabilities(self) -> Capabilities:
        """What it was seen to offer; known after `start`."""
        return Capabilities("", self._features)

    @property
    def address(self) -> EngineAddress:
        """Where the relay connects."""
        return self._address

    @property
    def exited(self) -> asyncio.Future[EngineExit]:
        """Resolves when it is let go; its own end cannot be seen from here."""
        return self._exited

    @property
    def is_managed(self) -> bool:
        """Not ours to start and stop."""
        return False

    async def start(self, kv_bytes: int) -> EngineReadings:  # noqa: ARG002
        """Check that it is reachable and knows the model.

        Raises:
            ReadyTimeout: it did not answer within `start_timeout`.
            EngineError: it answers, but does not serve the model.
        """
        await self.wait_ready()
        is_vllm = self._order.engine.kind is not EngineKind.ENDPOINT
        if is_vllm and await self._control.is_reachable("/is_paused"):
            # Attached, with its development endpoints: requests can be aborted by name.
            self._features = frozenset((Capability.PAUSE_KEEP, Capability.ABORT_REQUESTS))
        return await self.read_memory()

    async def wait_ready(self) -> None:
        """Wait until it lists the model.

        Raises:
            ReadyTimeout: it did not answer within `start_timeout`.
            EngineError: it answers, but does not serve the model.
        """
        limit_s = self._order.engine.start_timeout_s
        last_error: EngineError | None = None
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    status = 0
                    try:
                        status, names = await self._list_models()
                    except EngineError as exc:
                        last_error = exc
                    if status in (401, 403):
                        raise EngineError(
                            f"{self._address.base_url} refuses our key for model "
                            f"'{self._order.model.name}' ({status})",
                            hint="set `api_key_file` of the model",
                        )
                    if 200 <= status < 300:
                        self._check_serves(names)
                        return
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            raise ReadyTimeout(
                f"{self._address.base_url} did not list its models within "
                f"{format_seconds(limit_s)}: {last_error or 'no useful answer'}",
                hint=f"is it running? `engine.{self._order.engine.name}.start_timeout` sets the "
                "limit",
            ) from None

    async def sleep(self, tier: ResidencyTier) -> EngineReadings:
        """Not ours to do."""
        raise CapabilityMissing(f"'{self.engine_id}' is run by somebody else: no {tier.value} tier")

    async def wake(self) -> EngineReadings:
        """Not ours to do."""
        raise CapabilityMissing(f"'{self.engine_id}' is run by somebody else")

    async def suspend(self) -> EngineReadings:
        """Not ours to do."""
        raise CapabilityMissing(f"'{self.engine_id}' is run by somebody else")

    async def resume(self) -> EngineReadings:
        """Not ours to do."""
        raise CapabilityMissing(f"'{self.engine_id}' is run by somebody else")

    async def stop(self, grace_s: float | None = None) -> EngineExit:  # noqa: ARG002
        """Let go of it; it keeps running."""
        await self.detach()
        return self._exited.result()

    async def detach(self) -> None:
        """Let go of it."""
        await self._control.close()
        if not self._exited.done():
            self._exited.set_result(EngineExit(None))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests by name where it can; closing the connection does it everywhere."""
        if request_ids and Capability.ABORT_REQUESTS in self._features:
            names = [form for one in request_ids for form in (one, f"chatcmpl-{one}")]
            await self._control.post("/abort_requests", {"request_ids": names})

    async def probe(self) -> None:
        """Have one token generated.

        Raises:
            EngineError: it does not answer, or refuses.
        """
        message = [{"role": "user", "content": "1"}]
        payload = {"model": self._address.model, "messages": message, "max_tokens": 1}
        path = "/v1/chat/completions"
        status, body = await self._control.post_status(path, payload, limit_s=_PROBE_LIMIT_S)
        if status >= 400:
            raise EngineError(f"'{self.engine_id}' answered a probe with {status}: {body[:300]}")

    async def read_memory(self) -> EngineReadings:
        """Nothing of this node's."""
        return EngineReadings(0)

    async def read_state(self) -> EngineState:
        """Its load, when it publishes vLLM's metrics."""
        try:
            metrics = parse_metrics(await self._control.get_text("/metrics"))
        except EngineError:
            return EngineState()
        return EngineState(
            num_running=metrics.num_running,
            num_waiting=metrics.num_waiting,
            kv_usage=metrics.kv_usage,
        )

    async def set_kv_limit(self, kv_bytes: int) -> None:  # noqa: ARG002
        """Not ours to do."""
        raise CapabilityMissing(f"'{self.engine_id}' is run by somebody else")

    async def _list_models(self) -> tuple[int, list[str]]:
        try:
            answer = await self._control.get_json("/v1/models")
        except EngineError as exc:
            for status in (401, 403):
                if f"answered {status}" in exc.message:
                    return status, []
            raise
        entries = answer.get("data")
        names = [one.get("id") for one in entries or [] if isinstance(one, dict)]
        return 200, [name for name in names if isinstance(name, str)]

    def _check_serves(self, names: list[str]) -> None:
        # A server that lists nothing may still serve; one that lists others does not serve ours.
        if names and self._address.model not in names:
            raise EngineError(
                f"{self._address.base_url} does not serve '{self._address.model}'; it lists "
                f"{', '.join(sorted(names)[:8])}",
                hint="set `upstream_name` of the model to the name it has there",
            )


def parse_address(order: EngineOrder) -> EngineAddress:
    """Address of an engine that the user named by `url`.

    Raises:
        ConfigError: there is no URL, or it is not http, https or unix.
    """
    model = order.model
    url = (model.url or "").rstrip("/")
    key = read_api_key(model.api_key_file)
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        return EngineAddress("http://engine", order.served_name, path, key)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            f"model '{model.name}': `url` must be http://…, https://… or unix:/path, "
            f"found {model.url!r}"
        )
    # Requests carry the whole path: a trailing /v1 would double it.
    return EngineAddress(url.removesuffix("/v1"), order.served_name, None, key)
