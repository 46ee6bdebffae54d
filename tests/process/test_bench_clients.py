"""Load clients and the bare proxy against a stub engine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from maestroctl.testing.bench.closed_loop import LoadResult, run_closed_loop
from maestroctl.testing.bench.http_client import Target, build_request, chat_body
from maestroctl.testing.bench.streams import StreamResult, run_streams
from maestroctl.testing.stub import launch_stub, wait_until

CHAT = "/v1/chat/completions"


def request_for(text: str, **kwargs: Any) -> bytes:
    return build_request(CHAT, chat_body(text, **kwargs))


@asynccontextmanager
async def bare_proxy(listen: Path, upstream: Path) -> AsyncIterator[Target]:
    argv = ["--listen", str(listen), "--upstream", str(upstream)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "maestroctl.testing.bench.bare_proxy", *argv,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert (await process.stdout.readline()).startswith(b"listening on ")
        yield Target(path=str(listen))
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 10) == 0


def counted(result: LoadResult) -> int:
    return sum(result.statuses.values()) + sum(result.errors.values())


async def test_a_closed_loop_sends_exactly_its_requests(tmp_path: Path) -> None:
    async with launch_stub(tmp_path) as stub:
        target = Target(path=str(stub.socket_path))
        result = await run_closed_loop(
            target, request_for("TOKENS 1"), clients=4, requests=101, warmup=8
        )
        assert result.statuses == {200: 101}
        assert len(result.latencies_s) == 101
        assert not result.errors
        assert await stub.metric("generation_tokens_total") == 109


async def test_several_requests_are_sent_in_turn(tmp_path: Path) -> None:
    async with launch_stub(tmp_path) as stub:
        target = Target(path=str(stub.socket_path))
        requests = [request_for("TOKENS 1"), request_for("TOKENS 3")]
        await run_closed_loop(target, requests, clients=2, requests=10)
        assert await stub.metric("generation_tokens_total") == 20
        streams = [request_for("TOKENS 2", stream=True), request_for("TOKENS 4", stream=True)]
        result = await run_streams(target, streams, streams=10)
        assert result.chunks == 5 * (1 + 2 + 1) + 5 * (1 + 4 + 1)


async def test_a_closed_loop_works_over_tcp_and_counts_refusals(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, port=0) as stub:
        target = Target.parse(stub.base_url)
        request = request_for("hi", model="another")
        result = await run_closed_loop(target, request, clients=2, requests=10)
        assert result.statuses == {404: 10}
        assert result.latencies_s == []


async def test_every_request_of_a_dying_server_is_counted_once(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, exit_at_token=2) as stub:
        target = Target(path=str(stub.socket_path))
        result = await run_closed_loop(target, request_for("TOKENS 3"), clients=3, requests=10)
        assert counted(result) == 10
        assert result.errors["not sent"] == 7


async def test_a_closed_loop_gives_up_at_its_limit(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, stall_at_token=1) as stub:
        target = Target(path=str(stub.socket_path))
        result = await run_closed_loop(
            target, request_for("TOKENS 3"), clients=2, requests=2, limit_s=0.2
        )
        assert result.errors == {"timeout": 2}


async def test_streams_are_counted_chunk_by_chunk(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, token_interval=0.01) as stub:
        target = Target(path=str(stub.socket_path))
        request = request_for("TOKENS 5", stream=True)
        result = await run_streams(target, request, streams=20, ramp_s=0.01)
        assert result.completed == 20
        assert result.chunks == 20 * (1 + 5 + 1)
        assert len(result.first_chunk_s) == len(result.total_s) == 20
        assert result.most_open == 20
        assert result.open_now == 0


@pytest.mark.parametrize(
    ("flags", "field", "expected"),
    [
        ({"cut_stream_at": 2}, "broken", {"connection lost: closed": 5}),
        ({"fail_before_first_byte": True}, "refused", {500: 5}),
        ({"stall_at_token": 1}, "broken", {"timeout": 5}),
    ],
)
async def test_every_stream_is_counted_in_one_place(
    tmp_path: Path, flags: dict[str, Any], field: str, expected: dict[Any, int]
) -> None:
    async with launch_stub(tmp_path, **flags) as stub:
        request = request_for("TOKENS 5", stream=True)
        target = Target(path=str(stub.socket_path))
        result: StreamResult = await run_streams(target, request, streams=5, limit_s=0.5)
        assert result.completed == 0
        assert getattr(result, field) == expected


async def test_streams_that_cannot_connect_are_broken(tmp_path: Path) -> None:
    target = Target(path=str(tmp_path / "nothing"))
    result = await run_streams(target, b"", streams=3)
    assert result.broken == {"not connected: FileNotFoundError": 3}


async def test_two_bare_hops_forward_answers_streams_and_departures(tmp_path: Path) -> None:
    first, second = tmp_path / "1.sock", tmp_path / "2.sock"
    async with (
        launch_stub(tmp_path, token_interval=0.01) as stub,
        bare_proxy(second, stub.socket_path),
        bare_proxy(first, second) as target,
    ):
        plain = await run_closed_loop(target, request_for("TOKENS 1"), clients=4, requests=50)
        assert plain.statuses == {200: 50}
        request = request_for("TOKENS 10", stream=True)
        streamed = await run_streams(target, request, streams=20)
        assert (streamed.completed, streamed.chunks) == (20, 240)
        # Streams given up by their client are given up by both hops.
        endless = request_for("TOKENS 5000", stream=True)
        await run_streams(target, endless, streams=3, limit_s=0.3)
        running = [1.0]

        async def read() -> None:
            while running[0]:
                running[0] = await stub.metric("num_requests_running")

        await asyncio.wait_for(read(), 5)
        await wait_until(lambda: running[0] == 0)


async def test_both_programs_run_from_the_command_line(tmp_path: Path) -> None:
    async with launch_stub(tmp_path) as stub:
        for more in (["--requests", "50"], ["--streams", "5", "--tokens", "3"]):
            argv = [str(stub.socket_path), "--warmup", "0", "--pid", str(stub.pid), *more]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "maestroctl.testing.bench.load_client", *argv,
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            out, _ = await process.communicate()
            assert process.returncode == 0
            assert b'"cores":' in out
