"""`serve`, `doctor` and `models fetch` as processes: how they begin, end and refuse."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.cli import command, finish, interrupt, read_until, run
from tests.support.product import (
    ServeProcess,
    chat,
    free_port,
    processes_under,
    stub_fleet_toml,
    until,
)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    file = tmp_path / "fleet.toml"
    file.write_text(stub_fleet_toml(tmp_path))
    return file


@asynccontextmanager
async def serving(fleet: Path, tmp_path: Path) -> AsyncIterator[ServeProcess]:
    serve = ServeProcess(fleet, tmp_path / "home", free_port())
    try:
        await serve.start()
        yield serve
    finally:
        await serve.stop()


def home(tmp_path: Path) -> dict[str, str]:
    return {"MAESTROCTL_HOME": str(tmp_path / "home")}


async def test_address_is_printed_and_ctrl_c_ends_it_well(fleet: Path, tmp_path: Path) -> None:
    async with command("serve", fleet, env=home(tmp_path)) as process:
        said = await read_until(process.stderr, "/v1")
        assert "Serving alpha at http://127.0.0.1:" in said
        done = await interrupt(process)
    assert done.code == 0, done.err
    assert done.out == ""
    await until(lambda: not processes_under(tmp_path), 10)


async def test_first_ctrl_c_lets_open_requests_finish_a_second_does_not(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(stub_fleet_toml(tmp_path, flags=("--token-interval", "0.3")))
    async with serving(fleet, tmp_path) as serve:
        body = json.dumps(chat("count", max_tokens=200)).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", serve.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )

        async def is_running() -> bool:
            document = (await run("ps", "--json", "--url", serve.url)).document
            return bool(document["models"][0]["num_running"])

        await until(is_running)
        serve.send(signal.SIGINT)
        await until(lambda: "Draining" in serve.log.read_text() or _refuses(serve.port), 10)
        assert serve.process is not None
        assert serve.process.returncode is None
        serve.send(signal.SIGINT)
        assert await serve.wait(20) == 0
        answer = await reader.read()
        writer.close()
    assert b'"finish_reason":"stop"' not in answer
    await until(lambda: not processes_under(tmp_path), 10)


def _refuses(port: int) -> bool:
    """A draining gateway answers 503 to what is new."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"shutting down" in connection.recv(4096)


async def test_port_in_use_is_exit_code_4(fleet: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = await run("serve", fleet, "--listen", listen, env=home(tmp_path))
    assert done.code == 4
    assert f"cannot listen on {listen}" in done.err


async def test_second_coordinator_on_one_state_is_refused_with_the_pid_of_the_first(
    fleet: Path, tmp_path: Path
) -> None:
    async with serving(fleet, tmp_path) as serve:
        assert serve.process is not None
        done = await run("serve", fleet, "--listen", "127.0.0.1:0", env=home(tmp_path))
        assert done.code == 4
        assert f"pid {serve.process.pid}" in done.err


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("[[model]]\nnam = 1\n", 2, "unknown key 'nam'"),
        ("[[model\n", 2, "not valid TOML"),
        (
            '[coordinator]\nlisten = "0.0.0.0:0"\n[[model]]\nname = "a"\nsource = "pypi:x"\n',
            2,
            "keys",
        ),
        (
            '[[node]]\nname = "far"\nhost = "h"\n[[model]]\nname = "a"\nsource = "pypi:x"\n',
            3,
            "maestroctl deploy",
        ),
    ],
    ids=["key", "toml", "open", "remote"],
)
async def test_wrong_fleet_starts_nothing(tmp_path: Path, text: str, code: int, says: str) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    done = await run("serve", file, env=home(tmp_path))
    assert (done.code, says in done.err) == (code, True), done.err
    assert not processes_under(tmp_path)


async def test_doctor_finds_the_coordinator_that_runs(fleet: Path, tmp_path: Path) -> None:
    async with serving(fleet, tmp_path) as serve:
        done = await run("doctor", fleet, "--url", serve.url, "--json", env=home(tmp_path))
    found = {check["name"]: check for check in done.document["checks"]}
    assert found["coordinator"]["level"] == "ok"
    assert "pid" in found["coordinator"]["found"]
    assert done.code == 0, done.out


async def test_fetch_names_the_folder_and_reports_what_cannot_be_had(
    fleet: Path, tmp_path: Path
) -> None:
    done = await run("models", "fetch", fleet, "--json", env=home(tmp_path))
    assert done.code == 0, done.err
    assert done.document["models"][0]["folder"] == str(tmp_path / "tiny")
    fleet.write_text(fleet.read_text().replace(f"path:{tmp_path}/tiny", "path:/nowhere"))
    done = await run("models", "fetch", fleet, env=home(tmp_path))
    assert done.code == 1
    assert "path:/nowhere is not a folder" in done.err


async def test_module_is_the_command() -> None:
    async with command("--version", program=("-m", "maestroctl")) as process:
        assert (await finish(process)).out.startswith("maestroctl ")


async def test_models_nobody_has_measured_are_said_once(fleet: Path, tmp_path: Path) -> None:
    async with command("serve", fleet, env=home(tmp_path)) as process:
        said = await read_until(process.stderr, "estimated from geometry")
        assert "Costs of alpha are estimated" in said
        done = await interrupt(process)
    assert done.code == 0, done.err
    assert "estimated from geometry" not in done.err
    log = next((tmp_path / "home" / "nodes").glob("*/daemon.log")).read_text()
    assert log.count("model alpha: there is no profile for") == 1
