"""The predictor process never costs a stage more than its budget."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from maestroctl.errors import PredictorError
from maestroctl.predict import service_process
from maestroctl.predict.artifact import save_artifact
from maestroctl.predict.client import (
    BUDGET_S,
    SILENT_TRIPS,
    TRIP_AFTER,
    PredictorClient,
    is_hung,
    swap_local,
)
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.raw_prediction import CandidateFigures, RawPrediction
from maestroctl.predict.service import MAX_BATCH, PredictorService
from maestroctl.predict.service_process import ServiceProcess
from maestroctl.predict.stage_input import StageInput
from maestroctl.predict.wire import pack_frame, read_frame

STAGE = StageInput(candidates=("m",), role="agent", tail="hello \ud800 日本")
SLACK_S = 0.25
"""What a busy machine may add to a wait that asyncio bounds."""


class Echo:
    """Answers with the position; remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def predict(self, stages: Sequence[StageInput]) -> list[RawPrediction]:
        self.batches.append(len(stages))
        return [
            RawPrediction(0.5, {"m": CandidateFigures(s.position, s.position, s.position)})
            for s in stages
        ]


@asynccontextmanager
async def serving(service: PredictorService) -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mp") as folder:
        socket = Path(folder) / "s"
        task = asyncio.create_task(service.serve(socket))
        await until(socket.exists)
        yield socket
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def peer(handler: Callable[..., Awaitable[None]]) -> AsyncIterator[Path]:
    """A process that misbehaves, played by a server in this one."""
    with tempfile.TemporaryDirectory(prefix="mp") as folder:
        socket = Path(folder) / "s"
        handlers: list[asyncio.Task[None]] = []

        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handlers.append(asyncio.current_task())  # type: ignore[arg-type]
            await handler(reader, writer)

        server = await asyncio.start_unix_server(run, path=str(socket))
        yield socket
        server.close()
        # A handler left running would be cancelled by the loop's end, which is logged as an error.
        for task in handlers:
            await task


async def until(condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, "the condition never came true"
        await asyncio.sleep(0.01)


async def test_concurrent_stages_get_their_own_answers_in_batches() -> None:
    echo = Echo()
    async with serving(PredictorService({"model": echo})) as socket:
        client = PredictorClient(socket, budget_s=10.0)
        stages = [StageInput(candidates=("m",), position=k) for k in range(100)]
        said = await asyncio.gather(*(client.predict(stage) for stage in stages))
        await client.close()
    assert [answer["model"].figures["m"].q50 for answer in said] == list(range(100))
    assert max(echo.batches) > 1
    assert max(echo.batches) <= MAX_BATCH
    assert client.counters.fallbacks == 0


async def test_any_text_crosses_the_socket() -> None:
    async with serving(PredictorService({"model": Echo()})) as socket:
        client = PredictorClient(socket, budget_s=10.0)
        assert "model" in await client.predict(STAGE)
        await client.close()


async def test_no_process_means_the_fallback_at_once(tmp_path: Path) -> None:
    client = PredictorClient(tmp_path / "nobody")
    began = time.monotonic()
    assert await client.predict(STAGE) == {}
    assert time.monotonic() - began < BUDGET_S + SLACK_S
    assert client.counters.broken == 1
    await client.close()


async def test_a_hang_costs_the_budget_and_soon_nothing() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readexactly(1)
        writer.close()

    async with peer(hang) as socket:
        client = PredictorClient(socket)
        for _ in range(TRIP_AFTER):
            began = time.monotonic()
            assert await client.predict(STAGE) == {}
            assert time.monotonic() - began < BUDGET_S + SLACK_S
        assert client.counters.late == TRIP_AFTER
        began = time.monotonic()
        assert await client.predict(STAGE) == {}
        assert client.counters.skipped == 1
        assert time.monotonic() - began < BUDGET_S
        await client.close()


async def test_a_crash_in_mid_answer_is_a_fallback_not_an_error() -> None:
    async def crash(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(b"\x00\x00")
        writer.close()

    async with peer(crash) as socket:
        client = PredictorClient(socket)
        assert await client.predict(STAGE) == {}
        assert client.counters.broken == 1
        await client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02hi",
        pack_frame({"id": 0}),
        pack_frame({"id": 0, "said": 3}),
    ],
    ids=["huge", "not-json", "no-answer", "wrong-type"],
)
async def test_nonsense_is_a_fallback_not_an_error(answer: bytes) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(answer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(1)
        writer.close()

    async with peer(babble) as socket:
        client = PredictorClient(socket)
        assert await client.predict(STAGE) == {}
        assert client.counters.fallbacks == 1
        await client.close()


async def test_a_flood_is_turned_away_at_the_client() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client gives up
        writer.close()

    async with peer(hang) as socket:
        client = PredictorClient(socket, max_waiting=8)
        said = await asyncio.gather(*(client.predict(STAGE) for _ in range(200)))
        assert said == [{}] * 200
        assert client.counters.skipped >= 100
        await client.close()


async def test_a_refitted_model_is_swapped_in_and_out_while_stages_are_asked() -> None:
    def load(path: Path) -> tuple[str, Echo]:
        if path.name == "damaged":
            raise PredictorError("not an artifact")
        return f"local-{path.name}", Echo()

    async with serving(PredictorService({"model": Echo()}, load)) as socket:
        client = PredictorClient(socket, budget_s=10.0)

        async def asked() -> list[str]:
            return sorted(await client.predict(STAGE))

        assert await asked() == ["model"]
        for name in ("one", "two"):
            await swap_local(socket, Path(name))
            assert await asked() == [f"local-{name}", "model"]
        with pytest.raises(PredictorError, match="not an artifact"):
            await swap_local(socket, Path("damaged"))
        assert await asked() == ["local-two", "model"]
        await swap_local(socket, None)
        assert await asked() == ["model"]
        await client.close()


async def test_a_swap_that_nobody_answers_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PredictorError, match="does not answer"):
        await swap_local(tmp_path / "nobody", None)


async def test_a_bad_request_does_not_stop_the_service() -> None:
    async with serving(PredictorService({"model": Echo()})) as socket:
        reader, writer = await asyncio.open_unix_connection(str(socket))
        writer.write(pack_frame({"id": 7, "stage": {"no": "such field"}}))
        assert "error" in await read_frame(reader)
        writer.write(pack_frame({"id": 8, "stage": STAGE.to_json()}))
        assert (await read_frame(reader))["id"] == 8
        writer.close()


async def test_one_stage_that_a_model_cannot_take_ends_no_other() -> None:
    class Picky(Echo):
        def predict(self, stages: Sequence[StageInput]) -> list[RawPrediction]:
            if any(stage.position == 3 for stage in stages):
                raise IndexError("not that one")
            return super().predict(stages)

    async with serving(PredictorService({"model": Picky()})) as socket:
        client = PredictorClient(socket, budget_s=10.0)
        stages = [StageInput(candidates=("m",), position=k) for k in range(8)]
        said = await asyncio.gather(*(client.predict(stage) for stage in stages))
        await client.close()
    assert [bool(answer) for answer in said] == [k != 3 for k in range(8)]


async def test_a_hung_process_is_told_from_a_slow_and_a_dead_one(tmp_path: Path) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with peer(hang) as socket:
        assert await is_hung(socket, 0.1)
    async with serving(PredictorService({"model": Echo()})) as socket:
        assert not await is_hung(socket)
    assert not await is_hung(tmp_path / "nobody")


async def test_silence_is_reported_now_and_then() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    reports: list[int] = []
    async with peer(hang) as socket:
        client = PredictorClient(
            socket, budget_s=0.001, on_silence=lambda: reports.append(client.counters.late)
        )
        # The pauses between trips are skipped: what counts is how many there were.
        while len(reports) < 2:
            client._closed_until_s = 0.0
            assert await client.predict(STAGE) == {}
        await client.close()
    assert reports == [TRIP_AFTER + SILENT_TRIPS - 1, TRIP_AFTER + 2 * SILENT_TRIPS - 1]


async def test_a_start_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_process, "_RESTART_PAUSES_S", (0.0,))
    process = ServiceProcess(tmp_path / "s", tmp_path / "no-artifact")
    await process.start()
    launch, tries = process._launch, []

    async def starved() -> None:
        tries.append(1)
        if len(tries) <= 3:
            raise BlockingIOError("no process to be had")
        await launch()

    monkeypatch.setattr(process, "_launch", starved)
    await until(lambda: process.restarts >= 1, 30.0)
    assert len(tries) >= 4
    await process.stop()


async def test_a_killed_process_comes_back_and_ends_with_its_owner(
    model: PredictorModel, tmp_path: Path
) -> None:
    artifact = tmp_path / "a.mpred"
    digest = save_artifact(model, artifact)
    with tempfile.TemporaryDirectory(prefix="mp") as folder:
        process = ServiceProcess(Path(folder) / "s", artifact, digest=digest)
        client = PredictorClient(Path(folder) / "s", budget_s=5.0)
        await process.start()
        try:
            assert await process.wait_listening(60.0)
            assert "model" in await client.predict(STAGE)
            first = process.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await until(lambda: process.restarts == 1, 30.0)
            assert await process.wait_listening(60.0)
            await until(lambda: client._writer is None or client._writer.is_closing(), 10.0)
            assert "model" in await client.predict(STAGE)
            second = process.pid
            assert second is not None
        finally:
            await client.close()
            await process.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(second, 0)
