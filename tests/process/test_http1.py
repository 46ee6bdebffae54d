"""The HTTP of the inner hops, on real sockets: our client against our server and against others."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from maestroctl.live.http1.client import HttpPool
from maestroctl.live.http1.connection import HopError
from maestroctl.live.http1.server import HttpServer, Request
from tests.support.product import until

Handler = Callable[[Request], Awaitable[None]]


@pytest.fixture
async def listen(tmp_path: Path) -> AsyncIterator[Callable[[Handler], Awaitable[HttpPool]]]:
    """Serves a handler on a Unix socket and gives a pool of connections to it."""
    path = str(tmp_path / "s")
    servers: list[HttpServer] = []
    pools: list[HttpPool] = []

    async def start(handler: Handler) -> HttpPool:
        server = HttpServer(handler)
        await server.listen(path)
        servers.append(server)
        pools.append(HttpPool(socket_path=path))
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()
    for server in servers:
        await server.close()
        assert not server.connections


async def echo(request: Request) -> None:
    request.answer(200, request.body, {"X-Path": request.path, "X-Key": request.headers["key"]})


async def test_a_whole_answer_comes_back_with_its_headers(listen) -> None:  # type: ignore[no-untyped-def]
    pool = await listen(echo)
    response = await pool.post("/a?b=c", b"hello", {"Key": "value"})
    assert (response.status, response.content_length) == (200, 5)
    assert response.headers["x-path"] == "/a?b=c"
    assert response.headers["x-key"] == "value"
    assert await response.read() == b"hello"


async def test_connections_are_used_again_one_request_at_a_time(listen) -> None:  # type: ignore[no-untyped-def]
    pool = await listen(echo)
    for _ in range(5):
        assert await (await pool.post("/", b"x", {"Key": ""})).read() == b"x"
    assert len(pool._all) == 1
    answers = await asyncio.gather(*(pool.post("/", b"%d" % i, {"Key": ""}) for i in range(20)))
    assert [await answer.read() for answer in answers] == [b"%d" % i for i in range(20)]


async def test_closed_connections_leave_nothing_for_the_collector(listen) -> None:  # type: ignore[no-untyped-def]
    pool = await listen(echo)
    gc.collect()
    gc.disable()
    try:
        answers = await asyncio.gather(*(pool.post("/", b"x", {"Key": ""}) for _ in range(20)))
        assert [await answer.read() for answer in answers] == [b"x"] * 20
        alive = [weakref.ref(connection) for connection in pool._all]
        assert len(alive) == 20
        answers.clear()
        pool.close()
        await until(lambda: not any(one() for one in alive))
    finally:
        gc.enable()


async def test_idle_connections_are_closed_without_another_request(  # type: ignore[no-untyped-def]
    listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maestroctl.live.http1.client._IDLE_LIMIT_S", 0.05)
    pool = await listen(echo)
    answers = await asyncio.gather(*(pool.post("/", b"x", {"Key": ""}) for _ in range(20)))
    assert [await answer.read() for answer in answers] == [b"x"] * 20
    assert pool._all
    await until(lambda: not pool._all)
    assert await (await pool.post("/", b"again", {"Key": ""})).read() == b"again"


@pytest.mark.parametrize("size", [0, 1, 1 << 16, 5 << 20])
async def test_bodies_of_any_size_arrive_whole_both_ways(listen, size: int) -> None:  # type: ignore[no-untyped-def]
    pool = await listen(echo)
    body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)
    assert await (await pool.post("/", body, {"Key": ""})).read() == body


async def test_pieces_are_seen_as_they_are_sent(listen) -> None:  # type: ignore[no-untyped-def]
    go_on = asyncio.Event()

    async def stream(request: Request) -> None:
        request.start(200, {"Content-Type": "Text/Event-Stream; charset=utf-8"})
        await request.send(b"first")
        await go_on.wait()
        await request.send(b"second")
        request.end()

    response = await (await listen(stream)).post("/", b"", {})
    assert response.content_type == "text/event-stream"
    assert response.content_length is None
    assert await response.readany() == b"first"
    go_on.set()
    assert await response.readany() == b"second"
    assert await response.readany() == b""
    assert response.complete


async def test_a_slow_reader_holds_the_sender_back(listen) -> None:  # type: ignore[no-untyped-def]
    sent = 0

    async def flood(request: Request) -> None:
        nonlocal sent
        request.start(200, {})
        for _ in range(400):
            await request.send(b"x" * (1 << 16))
            sent += 1
        request.end()

    response = await (await listen(flood)).post("/", b"", {})
    first = await response.readany()
    held_at = await until_still(lambda: sent)
    assert held_at < 100
    assert len(first) + len(await response.read()) == 400 << 16


async def until_still(value: Callable[[], int]) -> int:
    """Wait until a number stops growing."""
    seen = -1
    while seen != (seen := value()):
        for _ in range(200):
            await asyncio.sleep(0)
    return seen


async def test_a_cut_answer_is_an_error_and_never_an_end(listen) -> None:  # type: ignore[no-untyped-def]
    async def cut(request: Request) -> None:
        request.start(200, {})
        await request.send(b"half")
        request.cut()

    response = await (await listen(cut)).post("/", b"", {})
    assert await response.readany() == b"half"
    with pytest.raises(HopError, match="middle"):
        await response.readany()


async def test_a_handler_that_fails_cuts_its_answer(listen) -> None:  # type: ignore[no-untyped-def]
    async def silent(request: Request) -> None:
        del request

    pool = await listen(silent)
    with pytest.raises(HopError, match="without an answer"):
        await pool.post("/", b"", {})


@pytest.mark.parametrize("moment", ["head", "body"])
async def test_a_caller_that_leaves_cancels_the_handler_at_once(listen, moment: str) -> None:  # type: ignore[no-untyped-def]
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> None:
        if moment == "body":
            request.start(200, {})
            await request.send(b"x")
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    pool = await listen(wait)
    call = asyncio.create_task(pool.post("/", b"", {}))
    await begun.wait()
    if moment == "head":
        call.cancel()
    else:
        (await call).close()
    await asyncio.wait_for(cancelled.wait(), 1.0)


async def test_nobody_listening_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        await HttpPool(socket_path=str(tmp_path / "nobody")).post("/", b"", {})


async def test_a_connection_that_the_peer_closed_meanwhile_is_not_used_again() -> None:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_post("/prefix/x", hello)
    runner = web.AppRunner(app, keepalive_timeout=0.05, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    pool = HttpPool(f"http://127.0.0.1:{port}/prefix/")
    try:
        assert await (await pool.post("/x", b"", {})).read() == b"hello"
        (connection,) = pool._all
        await until(lambda: connection.is_closed, 5.0)
        assert await (await pool.post("/x", b"", {})).read() == b"hello"
    finally:
        pool.close()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi"),
    ],
    ids=["ends with the connection", "100 first", "1.0"],
)
async def test_other_ways_to_end_an_answer(tmp_path: Path, answer: bytes, body: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
    pool = HttpPool(socket_path=str(tmp_path / "s"))
    async with server:
        assert await (await pool.post("/", b"", {})).read() == body
    pool.close()


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 2"], ids=repr)
async def test_a_peer_that_speaks_no_http_is_an_error(tmp_path: Path, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
    pool = HttpPool(socket_path=str(tmp_path / "s"))
    async with server:
        with pytest.raises(HopError):
            await pool.post("/", b"", {})
    pool.close()
