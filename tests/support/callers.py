"""Callers of a coordinator with one node: whole answers, streams, engines woken by hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from maestroctl.cli.wiring import Coordinator
from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.domain.messages import ModelAction
from tests.support.product import chat, until

NODE = NodeName("local")
BATCH = {"X-Maestro-Class": "batch"}


async def ask(
    coordinator: Coordinator,
    text: str,
    model: str,
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> tuple[int, str]:
    """HTTP status and text of one whole answer."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            coordinator.url + "/v1/chat/completions",
            json=chat(text, model, **fields),
            headers=headers,
        ) as response,
    ):
        body = await response.json()
        return response.status, body["choices"][0]["message"][
            "content"
        ] if "choices" in body else ""


class Stream:
    """A streamed answer of a batch request, as it comes.

    Attributes:
        text: so far.
        ended: the finish reason; None until it came.
    """

    def __init__(self, coordinator: Coordinator, text: str, model: str, **fields: Any) -> None:
        self.text = ""
        self.ended: str | None = None
        body = chat(text, model, stream=True, **fields)
        self.task = asyncio.create_task(self._read(coordinator, body))

    async def _read(self, coordinator: Coordinator, body: dict[str, Any]) -> None:
        url = coordinator.url + "/v1/chat/completions"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers=BATCH) as response,
        ):
            async for line in response.content:
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]" or not line.startswith(b"data: "):
                    continue
                for choice in json.loads(data)["choices"]:
                    self.text += choice["delta"].get("content") or ""
                    self.ended = choice["finish_reason"] or self.ended


def status_of(coordinator: Coordinator, model: str) -> EngineStatus | None:
    engines = coordinator.host.snapshots[NODE].engines
    return next((e.status for e in engines if e.model == model), None)


async def wake(coordinator: Coordinator, model: str, limit_s: float = 20.0) -> None:
    """Have the model awake."""
    await act(coordinator, model, ModelAction.WAKE, limit_s)


async def act(
    coordinator: Coordinator, model: str, action: ModelAction, limit_s: float = 20.0
) -> None:
    """Ask for something by hand and wait until it is done."""
    await until(lambda: NODE in coordinator.host.snapshots)
    link = coordinator.host.links[NODE]
    async with asyncio.timeout(limit_s):
        assert (await link.model_action(ModelName(model), action)).error is None
