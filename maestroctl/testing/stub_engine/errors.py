"""Error bodies: vLLM's by default, plain text with status 500 when the switch says so."""

from __future__ import annotations

from maestroctl.testing.stub_engine.engine import StubEngine
from maestroctl.testing.stub_engine.http_server import Exchange
from maestroctl.testing.stub_engine.text import BadRequest

_PHRASES = {400: "Bad Request"}


def send_error(
    engine: StubEngine,
    exchange: Exchange,
    status: int,
    message: str,
    kind: str | None = None,
    param: str | None = None,
) -> None:
    """Answer with an error.

    Args:
        engine: holds the switch for plain bodies.
        exchange: the open request.
        status: HTTP status.
        message: for people.
        kind: vLLM's error type; the phrase of the status when absent.
        param: the field at fault.
    """
    if engine.faults.plain_errors:
        exchange.send(500, message.encode(), b"text/plain; charset=utf-8")
        return
    kind = kind or _PHRASES.get(status, "InternalServerError")
    error = {"message": message, "type": kind, "param": param, "code": status}
    exchange.send_json(status, {"error": error})


def send_no_route(engine: StubEngine, exchange: Exchange, status: int, phrase: str) -> None:
    """Answer a path or method that does not exist; the framework's body, not vLLM's own."""
    if engine.faults.plain_errors:
        send_error(engine, exchange, status, phrase)
    else:
        exchange.send_json(status, {"detail": phrase})


def send_bad_request(engine: StubEngine, exchange: Exchange, error: BadRequest) -> None:
    """Answer a request that vLLM refuses with 400."""
    send_error(engine, exchange, 400, error.message, error.kind, error.param)
