"""A model added to the router with its own outcomes alone is what `serve` then goes by."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest

pytest.importorskip("lightgbm", reason="the predict extra is not installed")

from tests.support.cli import run
from tests.support.product import ServeProcess, chat, free_port, stub_fleet_toml, until

ADD = "Please add the numbers {} and 12 for me."
PROVE = "Write a proof of lemma {} about compact manifolds."
GROUP = """
[[group]]
name = "team"
models = ["alpha", "beta"]
[policy]
model_choice = "most_confident"
"""


async def add(model: str, word: str, artifact: Path) -> None:
    """The model answers well where `word` is in the question."""
    questions = [text.format(k) for text in (ADD, PROVE) for k in range(10, 90, 2)]
    lines = [{"question_text": q, "correct": word in q} for q in questions]
    outcomes = artifact.with_name(f"{model}.jsonl")
    outcomes.write_text("".join(json.dumps(line) + "\n" for line in lines))
    base = ("--artifact", artifact) if artifact.exists() else ()
    args = ("predictor", "add-model", model, "--outcomes", outcomes, "--out", artifact, *base)
    done = await run(*args, limit_s=300)
    assert done.code == 0, done.err


async def asked(serve: ServeProcess, question: str) -> str:
    """Who of the group answered."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            serve.url + "/v1/chat/completions", json=chat(question, "team", max_tokens=4)
        ) as response,
    ):
        assert response.status == 200, await response.text()
        return response.headers["X-Maestro-Model"]


async def is_predicting(serve: ServeProcess) -> bool:
    async with (
        aiohttp.ClientSession() as session,
        session.get(serve.url + "/api/predictor/status") as response,
    ):
        return bool((await response.json())["service"]["state"] == "running")


async def test_serve_asks_the_model_that_was_added_where_it_is_good(tmp_path: Path) -> None:
    await add("alpha", "numbers", tmp_path / "own.mpred")
    await add("beta", "proof", tmp_path / "own.mpred")
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        stub_fleet_toml(
            tmp_path,
            models={"alpha": (), "beta": ()},
            predictor='artifact = "own.mpred"\nbudget_ms = 10000',
            extra=GROUP,
        )
    )
    serve = ServeProcess(fleet, tmp_path / "home", free_port())
    try:
        await serve.start()
        await until(lambda: is_predicting(serve), 60)
        assert await asked(serve, ADD.format(33)) == "alpha"
        assert await asked(serve, PROVE.format(35)) == "beta"
        assert await asked(serve, ADD.format(37)) == "alpha"
    finally:
        await serve.stop()
