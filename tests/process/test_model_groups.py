"""A request for a group, end to end with stub engines: who serves it, and how it shows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.product import chat, running_coordinator, stub_fleet

MODELS: Mapping[str, tuple[str, ...]] = {"small": (), "large": (), "other": ()}
TEAM = """
[[group]]
name = "team"
models = ["large", "small"]
[policy]
model_choice = "{choice}"
"""


@asynccontextmanager
async def serving(tmp_path: Path, choice: str) -> AsyncIterator[Any]:
    """The product with a group of two of its three models, all used once: a function that asks."""
    fleet = stub_fleet(tmp_path, models=MODELS, extra=TEAM.format(choice=choice))
    async with running_coordinator(fleet, tmp_path) as coordinator, aiohttp.ClientSession() as http:
        url = coordinator.url

        async def ask(
            name: str, job: str, **fields: Any
        ) -> tuple[dict[str, Any], Mapping[str, str]]:
            body = chat("hello", name, max_tokens=5, **fields)
            headers = {"X-Maestro-Job": job}
            async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as reply:
                assert reply.status == 200, await reply.text()
                return await reply.json(), dict(reply.headers)

        for model in MODELS:  # from here on the node is known to offer every one
            await ask(model, f"first of {model}")
        yield ask


@pytest.mark.parametrize("choice", ["first", "maestroctl", "chimera", "most_confident"])
async def test_the_reply_names_the_model_that_served_it(tmp_path: Path, choice: str) -> None:
    """Nothing is known of the models, so the first of the group counts as the best."""
    async with serving(tmp_path, choice) as ask:
        answer, headers = await ask("team", "j1")
        assert answer["model"] in ("large", "small")
        if choice in ("first", "most_confident"):
            assert answer["model"] == "large"
        assert headers["X-Maestro-Model"] == answer["model"]


async def test_jobs_of_a_group_are_spread_and_each_keeps_its_model(tmp_path: Path) -> None:
    async with serving(tmp_path, "round_robin") as ask:
        served = {job: (await ask("team", job))[0]["model"] for job in ("a", "b", "c", "d")}
        assert list(served.values()) == ["large", "small", "large", "small"]
        for job, model in served.items():
            assert (await ask("team", job))[0]["model"] == model


async def test_auto_is_every_model_and_a_model_is_itself(tmp_path: Path) -> None:
    async with serving(tmp_path, "round_robin") as ask:
        served = [(await ask("auto", f"j{n}"))[0]["model"] for n in range(3)]
        assert sorted(served) == ["large", "other", "small"]
        assert (await ask("other", "j9"))[0]["model"] == "other"
