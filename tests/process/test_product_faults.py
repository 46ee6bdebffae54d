"""The whole product on stub engines: every failure switch, every kind of departure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from maestroctl.cli.wiring import Coordinator
from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import ModelName
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.snapshot import EngineSnapshot
from maestroctl.live.engine.identity import load_identities
from tests.support.product import chat, running_coordinator, stub_fleet, until

ALPHA = ModelName("alpha")


class Client:
    """Requests to one coordinator."""

    def __init__(self, coordinator: Coordinator, session: aiohttp.ClientSession) -> None:
        self.coordinator = coordinator
        self.session = session

    async def chat(self, text: str, **fields: Any) -> tuple[int, dict[str, Any]]:
        """A non-streaming chat request: status and body."""
        async with self.post(text, **fields) as response:
            return response.status, await response.json(content_type=None)

    def post(self, text: str, **fields: Any) -> Any:
        """A chat request."""
        url = self.coordinator.url + "/v1/chat/completions"
        return self.session.post(url, json=chat(text, **fields))

    def engine(self, model: str = "alpha") -> EngineSnapshot:
        """What the coordinator knows of the model's engine."""
        for snapshot in self.coordinator.control.nodes():
            for engine in snapshot.engines:
                if engine.model == model:
                    return engine
        raise AssertionError(f"no engine of {model}")

    async def until_status(self, status: EngineStatus, model: str = "alpha") -> EngineSnapshot:
        """Wait for an engine's state."""
        await until(lambda: self.engine(model).status is status)
        return self.engine(model)

    async def until_free(self, model: str = "alpha") -> None:
        """Wait until nothing runs, waits or is booked on the engine."""

        def is_free() -> bool:
            engine = self.engine(model)
            idle = engine.num_running == engine.num_waiting == engine.kv_booked_bytes == 0
            return idle and not len(self.coordinator.host.calls)

        await until(is_free)

    @contextlib.asynccontextmanager
    async def engine_session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """A way around the product, straight to the engine of alpha."""
        folder = self.coordinator._options.home / "nodes" / "local"
        (identity,) = load_identities(folder)
        connector = aiohttp.UnixConnector(identity.socket_path)
        async with aiohttp.ClientSession("http://engine", connector=connector) as session:
            yield session

    async def set_faults(self, **switches: Any) -> None:
        """Start the engine and change its failure switches while it runs."""
        assert (await self.chat("TOKENS 1"))[0] == 200
        async with (
            self.engine_session() as session,
            session.post("/stub/faults", json=switches) as response,
        ):
            assert response.status == 200, await response.text()

    async def kill_engine(self) -> None:
        """`kill -9` of alpha's engine."""
        (identity,) = load_identities(self.coordinator._options.home / "nodes" / "local")
        os.kill(identity.pid, signal.SIGKILL)

    async def until_engine_idle(self) -> None:
        """Wait until the engine itself says that it runs nothing."""
        async with self.engine_session() as session:

            async def is_idle() -> bool:
                async with session.get("/metrics") as response:
                    text = await response.text()
                line = next(
                    x for x in text.splitlines() if x.startswith("vllm:num_requests_running")
                )
                return float(line.rsplit(" ", 1)[1]) == 0

            await until(is_idle, 3.0)


async def serve(tmp_path: Path, **options: Any) -> AsyncIterator[Client]:
    async with (
        running_coordinator(stub_fleet(tmp_path, **options), tmp_path) as coordinator,
        aiohttp.ClientSession() as session,
    ):
        await until(lambda: coordinator.control.not_ready() is None)
        yield Client(coordinator, session)


@pytest.fixture
def serving(tmp_path: Path) -> Any:
    """Makes a client of a running product: ``async with serving(flags=(...)) as client``."""
    return lambda **options: contextlib.asynccontextmanager(serve)(tmp_path, **options)


def error_of(body: dict[str, Any]) -> str:
    return f"{body['error']['code']}: {body['error']['message']}"


# --- engines that do not start --------------------------------------------------------------------


async def test_an_engine_that_refuses_to_start_is_reported_with_its_last_words(
    serving: Any,
) -> None:
    async with serving(flags=("--refuse-start",)) as client:
        status, body = await client.chat("hello")
        assert status == 503, body
        engine = await client.until_status(EngineStatus.FAILED)
        assert engine.failure is not None
        assert "refus" in engine.failure.lower()


async def test_a_slow_start_is_waited_for(serving: Any) -> None:
    async with serving(flags=("--start-delay", "1.0")) as client:
        status, body = await client.chat("ECHO: good morning")
        assert status == 200, body
        assert body["choices"][0]["message"]["content"] == "good morning"


# --- engines that fail while they serve -----------------------------------------------------------


async def test_an_engine_that_dies_mid_stream_ends_the_stream_with_an_error(serving: Any) -> None:
    async with serving(flags=("--exit-at-token", "5", "--token-interval", "0.01")) as client:
        text = await _read(client.post("TOKENS 50", stream=True))
        assert "[DONE]" not in text
        last = json.loads(text.strip().split("\n\n")[-1].removeprefix("data: "))
        assert "error" in last, text
        await client.until_free()


async def test_a_cut_stream_never_looks_complete(serving: Any) -> None:
    async with serving(flags=("--cut-stream-at", "3", "--token-interval", "0.01")) as client:
        text = await _read(client.post("TOKENS 50", stream=True))
        assert "[DONE]" not in text
        assert '"error"' in text
        await client.until_free()


async def test_a_failure_before_the_first_byte_is_retried_once(serving: Any) -> None:
    async with serving() as client:
        await client.set_faults(fail_before_first_byte=1)
        status, body = await client.chat("ECHO: second try")
        assert status == 200, body
        assert body["choices"][0]["message"]["content"] == "second try"


async def test_an_engine_that_dies_before_the_first_byte_of_a_stream_is_replaced(
    serving: Any,
) -> None:
    async with serving(flags=("--prefill-interval", "0.5")) as client:
        assert (await client.chat("TOKENS 1"))[0] == 200
        task = asyncio.create_task(_read(client.post("ECHO: from a new engine", stream=True)))
        await until(lambda: client.engine().num_running == 1)
        await client.kill_engine()
        text = await task
        assert "engine" in text
        assert text.endswith("[DONE]\n\n")


async def test_a_failure_that_stays_reaches_the_caller(serving: Any) -> None:
    async with serving() as client:
        await client.set_faults(fail_before_first_byte=99, plain_errors=True)
        status, body = await client.chat("hello")
        assert status == 502, body
        assert "500" in error_of(body)
        await client.until_free()


async def test_a_4xx_of_the_engine_is_passed_on_and_never_counts_against_it(serving: Any) -> None:
    async with serving() as client:
        status, body = await client.chat("hello", max_tokens=10_000)
        assert status == 400, body
        assert client.engine().failure is None
        assert (await client.chat("ECHO: fine"))[0] == 200


# --- callers that leave ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_caller_that_leaves_while_running_frees_slot_booking_and_engine(
    serving: Any, stream: bool
) -> None:
    async with serving(flags=("--token-interval", "0.05")) as client:
        assert (await client.chat("TOKENS 1"))[0] == 200
        task = asyncio.create_task(_read(client.post("TOKENS 1500", stream=stream)))
        await until(
            lambda: any(s["state"] != "queued" for s in client.coordinator.control.running())
        )
        await until(lambda: client.engine().num_running == 1)
        task.cancel()
        await client.until_free()
        await client.until_engine_idle()


async def test_a_caller_that_leaves_before_the_first_token_frees_everything(serving: Any) -> None:
    async with serving(flags=("--start-delay", "2.0")) as client:
        task = asyncio.create_task(_read(client.post("hello", stream=True)))
        await until(lambda: client.engine().num_waiting == 1)
        task.cancel()
        await client.until_free()


async def test_a_caller_that_leaves_the_queue_frees_its_place(serving: Any) -> None:
    async with serving(
        flags=("--token-interval", "0.02", "--max-num-seqs", "1"), model_extra="max_batch = 1"
    ) as client:
        running = [
            asyncio.create_task(_read(client.post("TOKENS 40", stream=True))) for _ in range(5)
        ]
        await until(
            lambda: any(s["state"] == "queued" for s in client.coordinator.control.running())
        )
        running[-1].cancel()
        answers = await asyncio.gather(*running[:-1])
        assert all("[DONE]" in answer for answer in answers)
        await client.until_free()


# --- sleep and wake ------------------------------------------------------------------------------


async def test_only_one_model_fits_and_each_request_gets_its_own_model(serving: Any) -> None:
    async with serving(models={"alpha": (), "beta": ()}, memory=ONE_AWAKE) as client:
        for model in ("alpha", "beta", "alpha", "beta"):
            status, body = await client.chat(f"ECHO: {model}", model=model)
            assert status == 200, body
            assert body["model"] == model
            assert body["choices"][0]["message"]["content"] == model
        assert client.engine("alpha").status is EngineStatus.SLEEPING


async def test_an_engine_that_lies_about_sleep_is_stopped_not_trusted(serving: Any) -> None:
    flags = ("--lie-about-sleep", "--weights-mib", "64")
    async with serving(flags=flags) as client:
        assert (await client.chat("hello"))[0] == 200
        answer = await client.coordinator.control.model_action(ALPHA, ModelAction.SLEEP)
        assert answer.error is not None
        await until(lambda: client.engine().status in (EngineStatus.STOPPED, EngineStatus.FAILED))
        assert (await client.chat("ECHO: again"))[0] == 200


@pytest.mark.parametrize("how", ["once", "always"])
async def test_a_wake_that_fails_is_answered_by_a_fresh_start(serving: Any, how: str) -> None:
    async with serving(flags=("--fail-wake", how)) as client:
        assert (await client.chat("hello"))[0] == 200
        answer = await client.coordinator.control.model_action(ALPHA, ModelAction.SLEEP)
        assert answer.error is None
        status, body = await client.chat("ECHO: back")
        assert status == 200, body
        assert body["choices"][0]["message"]["content"] == "back"


async def test_memory_that_returns_late_is_waited_for(serving: Any) -> None:
    flags = ("--return-memory-late", "1.0", "--weights-mib", "64")
    async with serving(flags=flags) as client:
        assert (await client.chat("hello"))[0] == 200
        answer = await client.coordinator.control.model_action(ALPHA, ModelAction.SLEEP)
        assert answer.error is None
        await client.until_status(EngineStatus.SLEEPING)


# --- the end -----------------------------------------------------------------------------------


async def test_engines_that_ignore_sigterm_and_fork_are_gone_after_a_stop(serving: Any) -> None:
    async with serving(flags=("--ignore-sigterm", "--fork-grandchild")) as client:
        assert (await client.chat("hello"))[0] == 200
    # leaving the block checks that no process of the test is left


ONE_AWAKE = "3900 MiB"
"""Two sleeping contexts of 1.9 GB fit; with one of them awake the other must sleep or stop."""


async def _read(request: Any) -> str:
    """What comes of an answer, to its end or to where it is cut."""
    parts = []
    async with request as response:
        with contextlib.suppress(aiohttp.ClientPayloadError):
            while part := await response.content.readany():
                parts.append(part)
    return b"".join(parts).decode()
