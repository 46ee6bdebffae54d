"""The coordinator as commands see it, and what else may answer at its address."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from typer.testing import CliRunner

from maestroctl.cli.api import CoordinatorUnreachable
from maestroctl.cli.exit_codes import ExitCode, exit_code_of
from maestroctl.cli.main import app

COMMANDS = (
    ["ps"],
    ["jobs"],
    ["job", "show", "job-1"],
    ["models", "list"],
    ["predictor", "reset"],
    ["explain", "job-1"],
)


class Other(BaseHTTPRequestHandler):
    """Answers everything with one text."""

    text = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.text.encode())

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other() -> Iterator[str]:
    """The address of a server that is none of ours."""
    server = HTTPServer(("127.0.0.1", 0), Other)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("text", ["<html>", "[]", "7", "{}", '{"models": []}'])
@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_another_server_at_the_address_is_told_from_a_bug(
    args: list[str], text: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Other, "text", text)
    result = CliRunner().invoke(app, [*args, "--url", other])
    assert isinstance(result.exception, CoordinatorUnreachable), result.exception
    assert exit_code_of(result.exception) is ExitCode.UNREACHABLE
    assert "is not a coordinator" in str(result.exception)


@pytest.mark.parametrize(
    "url", ["localhost:8080", "http://", "http://host:port", "http://a b", "http://127.0.0.1:0"]
)
def test_an_address_that_is_none_is_no_bug(url: str) -> None:
    result = CliRunner().invoke(app, ["ps", "--url", url])
    assert result.exception is not None
    assert exit_code_of(result.exception) in (ExitCode.USAGE, ExitCode.UNREACHABLE)
    assert url.removesuffix("/") in str(result.exception)
