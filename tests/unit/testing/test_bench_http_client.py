from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maestroctl.testing.bench.http_client import (
    EventCounter,
    ResponseError,
    ResponseParser,
    Target,
    build_request,
)

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 429 Too\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("unix:/run/a.sock", Target(path="/run/a.sock")),
        ("/run/a.sock", Target(path="/run/a.sock")),
        ("127.0.0.1:80", Target(host="127.0.0.1", port=80)),
        ("http://localhost:8080/", Target(host="localhost", port=8080)),
        ("[::1]:9", Target(host="::1", port=9)),
    ],
)
def test_a_target_is_a_socket_or_an_address(text: str, target: Target) -> None:
    assert Target.parse(text) == target


@pytest.mark.parametrize("text", ["", "host", "host:port", "http://host"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a target"):
        Target.parse(text)


def test_a_request_has_the_length_of_its_body() -> None:
    request = build_request("/p", {"a": "ü"}, {"Authorization": "Bearer k"})
    head, _, body = request.partition(b"\r\n\r\n")
    assert json.loads(body) == {"a": "ü"}
    assert head.startswith(b"POST /p HTTP/1.1\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"Authorization: Bearer k" in head


@pytest.mark.parametrize(("raw", "status"), [(PLAIN, 200), (CHUNKED, 429)])
@given(cuts=st.lists(st.integers(0, 90), max_size=8))
def test_a_response_is_the_same_however_it_is_cut(raw: bytes, status: int, cuts: list[int]) -> None:
    body: list[bytes] = []
    parser = ResponseParser(body.append)
    for _ in range(2):  # a parser serves a whole connection
        body.clear()
        edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
        pieces = [raw[a:b] for a, b in itertools.pairwise(edges) if a < b]
        done = [parser.feed(piece) for piece in pieces]
        assert done == [False] * (len(done) - 1) + [True]
        assert b"".join(body) == b"hello"
        assert parser.status == status


def test_a_close_is_noticed() -> None:
    parser = ResponseParser()
    assert parser.feed(PLAIN.replace(b"Content-Type: x", b"Connection: close"))
    assert not parser.keep_alive


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        PLAIN + b"surplus",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_response_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        ResponseParser().feed(raw)
    assert issubclass(ResponseError, ValueError)


STREAM = (
    b': heartbeat\n\ndata: {"choices":[]}\n\ndata: {"choices":[]}\n\n'
    b'data: {"error":{"code":1}}\n\nevent: error\ndata: {}\n\ndata: [DONE]\n\n'
)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_are_counted_however_they_are_cut(cuts: list[int]) -> None:
    counter = EventCounter()
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(edges):
        counter.feed(STREAM[start:end])
    assert (counter.chunks, counter.heartbeats, counter.errors) == (2, 1, 2)
    assert counter.is_done
