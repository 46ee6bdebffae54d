"""The stub's HTTP layer fed byte by byte, without a socket."""

from __future__ import annotations

import pytest

from maestroctl.testing.stub_engine.http_server import Exchange, HttpConnection, HttpServer


class FakeTransport:
    def __init__(self) -> None:
        self.sent = b""
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Peer:
    """One connection to a server that answers with what it was asked, or keeps the exchange."""

    def __init__(self, *, keep: bool = False) -> None:
        self.kept: list[Exchange] = []
        self.server = HttpServer(self.kept.append if keep else self._echo)
        self.connection: HttpConnection = self.server.connect()
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def feed(self, data: bytes) -> bytes:
        self.transport.sent = b""
        self.connection.data_received(data)
        return self.transport.sent

    @staticmethod
    def _echo(exchange: Exchange) -> None:
        request = exchange.request
        exchange.send(200, f"{request.method} {request.path} ".encode() + request.body)


GET = b"GET /a?x=1 HTTP/1.1\r\nHost: s\r\n\r\n"
POST = b"POST /b HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
)


@pytest.mark.parametrize(
    ("raw", "body"),
    [(GET, b"GET /a "), (POST, b"POST /b hello"), (CHUNKED, b"POST /c hello")],
    ids=["get", "post", "chunked"],
)
def test_a_request_is_the_same_whole_and_byte_by_byte(raw: bytes, body: bytes) -> None:
    whole = Peer().feed(raw)
    assert whole.startswith(b"HTTP/1.1 200 OK\r\n")
    assert whole.endswith(b"\r\n\r\n" + body)
    peer = Peer()
    answers = [peer.feed(bytes([byte])) for byte in raw]
    assert b"".join(answers) == whole
    assert answers[-1] == whole


def test_pipelined_requests_are_answered_in_order() -> None:
    answer = Peer().feed(GET + POST + CHUNKED)
    places = [answer.find(body) for body in (b"GET /a ", b"POST /b", b"POST /c")]
    assert places == sorted(places)
    assert answer.count(b"HTTP/1.1 200 OK") == 3


def test_a_request_behind_an_open_one_waits_for_it() -> None:
    peer = Peer(keep=True)
    peer.feed(GET + POST)
    assert len(peer.kept) == 1
    peer.kept[0].send(200, b"first")
    assert len(peer.kept) == 2
    assert peer.kept[1].request.body == b"hello"


def test_a_peer_that_leaves_is_reported_once_and_later_writes_are_ignored() -> None:
    peer = Peer(keep=True)
    peer.feed(GET)
    gone: list[str] = []
    peer.kept[0].on_gone = lambda: gone.append("gone")
    assert peer.server.num_open_exchanges == 1
    peer.connection.connection_lost(None)
    assert gone == ["gone"]
    assert peer.server.num_open_exchanges == 0
    peer.transport.sent = b""
    peer.kept[0].send(200, b"late")
    assert peer.transport.sent == b""


def test_a_finished_exchange_is_not_reported_as_gone() -> None:
    peer = Peer(keep=True)
    peer.feed(GET)
    gone: list[str] = []
    peer.kept[0].on_gone = lambda: gone.append("gone")
    peer.kept[0].send(200, b"")
    peer.connection.connection_lost(None)
    assert gone == []


def test_a_close_is_honoured_after_the_answer() -> None:
    peer = Peer()
    answer = peer.feed(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert b"connection: close\r\n" in answer
    assert peer.transport.closed


def test_a_client_that_asks_may_continue() -> None:
    peer = Peer()
    head = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    assert peer.feed(head) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert peer.feed(b"ok").endswith(b"POST / ok")


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"a" * 70_000,
    ],
    ids=["request line", "header", "length", "chunk", "too long"],
)
def test_what_is_not_http_is_answered_with_400_and_a_close(raw: bytes) -> None:
    peer = Peer()
    assert peer.feed(raw).startswith(b"HTTP/1.1 400 ")
    assert peer.transport.closed


def test_a_stream_is_framed_in_chunks_and_a_cut_one_has_no_end() -> None:
    peer = Peer(keep=True)
    peer.feed(GET)
    peer.transport.sent = b""
    peer.kept[0].start_stream()
    peer.kept[0].write_chunks([b"ab", b"c"])
    assert peer.transport.sent.endswith(b"\r\n\r\n2\r\nab\r\n1\r\nc\r\n")
    peer.kept[0].cut()
    assert peer.transport.closed
    assert not peer.transport.sent.endswith(b"0\r\n\r\n")


def test_a_cut_answer_is_shorter_than_it_says() -> None:
    peer = Peer(keep=True)
    peer.feed(GET)
    peer.transport.sent = b""
    peer.kept[0].cut(body=b"0123456789")
    assert b"content-length: 10\r\n" in peer.transport.sent
    assert peer.transport.sent.endswith(b"\r\n\r\n01234")


def test_a_bug_in_a_handler_is_a_500(capsys: pytest.CaptureFixture[str]) -> None:
    peer = Peer()

    def broken(_exchange: Exchange) -> None:
        raise KeyError("oops")

    peer.server.handler = broken
    assert peer.feed(GET).startswith(b"HTTP/1.1 500 ")
    assert "oops" in capsys.readouterr().err


def test_reading_stops_while_too_much_waits_behind_an_open_exchange() -> None:
    peer = Peer(keep=True)
    peer.feed(GET)
    peer.feed(b"x" * (1024 * 1024 + 1))
    assert not peer.transport.reading
