"""The whole product against bad input: a clear error, nothing started, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from maestroctl.cli.wiring import Coordinator
from maestroctl.config.fleet import parse_fleet
from maestroctl.errors import FleetError
from tests.support.cli import run
from tests.support.product import (
    ServeProcess,
    chat,
    engines_of,
    free_port,
    processes_under,
    running_coordinator,
    stub_fleet,
    stub_fleet_toml,
    until,
)

NAME = "org/モデル-ß"


@contextlib.asynccontextmanager
async def serving(
    tmp_path: Path, extra: str = "", **options: Any
) -> AsyncIterator[tuple[Coordinator, aiohttp.ClientSession]]:
    """A coordinator whose node has said what it can run."""
    fleet = parse_fleet(stub_fleet_toml(tmp_path, extra=extra, **options)).spec
    async with running_coordinator(fleet, tmp_path) as coordinator:
        await until(lambda: list(coordinator.control.nodes()))
        async with aiohttp.ClientSession(coordinator.url) as session:
            yield coordinator, session


async def ask(
    session: aiohttp.ClientSession, model: str, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], Any]:
    """Status, body and headers of a short request."""
    body = chat("TOKENS 2", model=model, max_tokens=2)
    async with session.post("/v1/chat/completions", json=body, headers=headers) as response:
        return response.status, await response.json(content_type=None), response.headers


async def act(session: aiohttp.ClientSession, model: str, action: str) -> tuple[int, str]:
    """A model action by hand: status and text."""
    url = f"/api/models/{model}/{action}"
    async with session.post(url) as response:
        return response.status, await response.text()


@contextlib.asynccontextmanager
async def foreign_engine(*flags: str) -> AsyncIterator[str]:
    """An engine that somebody else runs; its URL."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "maestroctl.testing.stub_engine", "--port", str(port)),
        *("--served-model-name", "theirs", *flags),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        await process.wait()


def endpoint(name: str, url: str, more: str = "") -> str:
    """A model that is only routed to."""
    return (
        f'[[model]]\nname = "{name}"\nengine = "endpoint"\nurl = "{url}"\n'
        f'upstream_name = "theirs"\n{more}\n'
    )


# --- names --------------------------------------------------------------------------------------


async def test_a_name_with_a_slash_and_other_letters_is_served_from_end_to_end(
    tmp_path: Path,
) -> None:
    fleet = stub_fleet_toml(tmp_path, models={"alpha": ()}).replace(
        'name = "alpha"', f'name = "{NAME}"'
    )
    file = tmp_path / "fleet.toml"
    file.write_text(fleet)
    serve = ServeProcess(file, tmp_path / "home", free_port())
    try:
        await serve.start()
        async with aiohttp.ClientSession(serve.url) as session:
            status, body, headers = await ask(session, NAME)
            assert (status, body["model"]) == (200, NAME)
            assert headers["X-Maestro-Model"].encode("utf-8", "surrogateescape").decode() == NAME
            async with session.get(f"/v1/models/{NAME}") as response:
                assert (await response.json())["id"] == NAME
        for action in ("sleep", "wake", "pin", "unpin", "evict"):
            done = await run("models", action, NAME, "--url", serve.url)
            assert done.code == 0, done.err
        ps = await run("ps", "--json", "--url", serve.url)
        assert [row["model"] for row in ps.document["models"]] == [NAME]
        logs = list((tmp_path / "home/nodes/local/logs").iterdir())
        assert len(logs) == 1
    finally:
        await serve.stop()
    await until(lambda: not processes_under(tmp_path), 10)


ODD_NAMES = ["a:b", "a b", "../../etc/passwd", "/", "a//b", "é\u0000", "☃"]
BAD_HEADERS = [
    ("X-Maestro-Class", "urgent"),
    ("X-Maestro-Deadline", "-5"),
    ("X-Maestro-Deadline", "nan"),
    ("X-Maestro-Deadline", "inf"),
    ("X-Maestro-Role", "r" * 5000),
]


async def test_odd_names_and_wrong_headers_are_named_and_start_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, session):
        for name in ODD_NAMES:
            status, body, _ = await ask(session, name)
            assert (status, body["error"]["code"]) == (404, "model_not_found"), name
        for header, value in BAD_HEADERS:
            status, body, _ = await ask(session, "alpha", {header: value})
            assert status == 400, (header, value)
            assert body["error"]["param"].lower() == header.lower()
        assert not [p for p in engines_of(tmp_path) if "stub_engine" in " ".join(p.cmdline())]


# --- models that can never run ------------------------------------------------------------------


UNFIT = {
    "no-python": (
        '[engine.none]\nkind = "vllm-cpu"\npython = "/no/such/python"\nversion = "0.32.0"\n'
        '[[model]]\nname = "bad"\nsource = "path:{tiny}"\nengine = "none"\n',
        "/no/such/python does not exist",
    ),
    "old-engine": (
        '[engine.old]\nkind = "vllm-cpu"\npython = "{python}"\nversion = "0.1.0"\n'
        'entrypoint = "maestroctl.testing.stub_engine"\n'
        '[[model]]\nname = "bad"\nsource = "path:{tiny}"\nengine = "old"\n',
        "0.1.0 is not supported",
    ),
    "no-folder": (
        '[[model]]\nname = "bad"\nsource = "path:{tiny}/nothing"\nengine = "stub-alpha"\n',
        "is not a folder",
    ),
    "too-big": (
        '[[model]]\nname = "bad"\nengine = "command"\ncommand = ["x", "${{PORT}}"]\n'
        'memory = "9000 GiB"\n',
        "needs 8.79 TiB at least|needs 9000 GiB at least",
    ),
    "no-key": (
        '[[model]]\nname = "bad"\nengine = "endpoint"\nurl = "http://127.0.0.1:9"\n'
        'api_key_file = "{tiny}/nokey"\n',
        "key file cannot be read",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
async def test_a_model_that_can_never_run_says_why_everywhere(tmp_path: Path, kind: str) -> None:
    extra, words = UNFIT[kind]
    extra = extra.format(tiny=tmp_path / "tiny", python=sys.executable)

    def says(text: str) -> bool:
        return any(word in text for word in words.split("|"))

    async with serving(tmp_path, extra) as (_, session):
        status, body, headers = await ask(session, "bad")
        assert (status, body["error"]["code"]) == (503, "model_unavailable")
        assert says(body["error"]["message"]), body
        assert "Retry-After" not in headers  # it would be the same again
        status, text = await act(session, "bad", "wake")
        assert status >= 400
        assert says(text), text
        async with session.get("/api/ps") as response:
            rows = {row["model"]: row for row in (await response.json())["models"]}
        assert says(rows["bad"]["failure"]), rows["bad"]
        assert rows["alpha"]["failure"] is None
        assert (await ask(session, "alpha"))[0] == 200  # the others are served


async def test_a_workflow_on_a_model_that_can_never_run_fails_at_once(tmp_path: Path) -> None:
    extra = UNFIT["no-folder"][0].format(tiny=tmp_path / "tiny")
    file = tmp_path / "w.toml"
    file.write_text(
        '[workflow]\nname = "w"\n[[step]]\nname = "a"\nmodels = ["bad"]\nprompt = "x"\n'
    )
    async with serving(tmp_path, extra) as (coordinator, _):
        done = await run("submit", file, "--url", coordinator.url, "--json", limit_s=30)
        assert done.code != 0
        assert "is not a folder" in done.out + done.err


# --- engines of others --------------------------------------------------------------------------


async def test_an_endpoint_is_routed_to_with_its_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("theirkey\n")
    key.chmod(0o600)
    async with foreign_engine("--api-key", "theirkey") as url:
        extra = endpoint("theirs", url, f'api_key_file = "{key}"') + endpoint("nokey", url)
        async with serving(tmp_path, extra) as (coordinator, session):

            async def answers() -> bool:
                return (await ask(session, "theirs"))[0] == 200

            await until(answers)
            status, body, _ = await ask(session, "nokey")
            assert (status, body["error"]["code"]) == (502, "engine_failed")
            assert "api_key_file" in body["error"]["message"]
            await _nothing_is_booked(coordinator)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_endpoint_that_is_down_is_a_502_and_leaves_nothing_booked(
    tmp_path: Path, scheme: str, stream: bool
) -> None:
    extra = endpoint("gone", f"{scheme}://127.0.0.1:{free_port()}/v1")
    async with serving(tmp_path, extra) as (coordinator, session):
        body = chat("x", model="gone", stream=stream)
        for _ in range(2):
            async with session.post("/v1/chat/completions", json=body) as response:
                assert "engine gone@local broke off" in await response.text()
                assert response.status == 502
        await _nothing_is_booked(coordinator)


async def _nothing_is_booked(coordinator: Coordinator) -> None:
    def is_free() -> bool:
        engines = [e for node in coordinator.control.nodes() for e in node.engines]
        return not any(e.num_running or e.num_waiting or e.kv_booked_bytes for e in engines)

    await until(is_free)


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "is empty"), ("ключ", "printable ASCII"), ("a\x01b", "printable ASCII")],
)
async def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(
    tmp_path: Path, text: str, says: str
) -> None:
    key = tmp_path / "key"
    key.write_text(text)
    key.chmod(0o600)
    extra = endpoint("theirs", "http://127.0.0.1:9", f'api_key_file = "{key}"')
    async with serving(tmp_path, extra) as (_, session):
        status, body, _ = await ask(session, "theirs")
        assert status == 503
        assert says in body["error"]["message"]
        assert not text or text not in json.dumps(body, ensure_ascii=False)


# --- the state folder ---------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["a file", "too long"])
async def test_a_home_that_cannot_be_used_ends_the_start_and_leaves_nothing(
    tmp_path: Path, fault: str
) -> None:
    (tmp_path / "home").write_text("in the way")
    home = tmp_path / ("home" if fault == "a file" else "h" * 120)
    serve = ServeProcess(tmp_path / "f.toml", home, free_port())
    serve.fleet_file.write_text(stub_fleet_toml(tmp_path))
    env = {"MAESTROCTL_HOME": str(home)}
    done = await run("serve", serve.fleet_file, "--listen", "127.0.0.1:0", env=env)
    assert done.code == 3
    assert "MAESTROCTL_HOME" in done.err
    assert "Traceback" not in done.err
    await until(lambda: not processes_under(tmp_path), 10)


async def test_a_node_elsewhere_is_refused_before_anything_starts(tmp_path: Path) -> None:
    text = stub_fleet_toml(tmp_path).replace('name = "local"', 'name = "far"\nhost = "far.example"')
    fleet = parse_fleet(text).spec
    with pytest.raises(FleetError, match="far"):
        async with running_coordinator(fleet, tmp_path):
            pass
    assert engines_of(tmp_path) == []
    async with running_coordinator(stub_fleet(tmp_path), tmp_path):  # and nothing holds the state
        pass


async def test_two_coordinators_never_share_a_node(tmp_path: Path) -> None:
    fleet = stub_fleet(tmp_path)
    other = tmp_path / "other.toml"
    other.write_text(stub_fleet_toml(tmp_path).replace("state.db", "other.db"))
    async with (
        running_coordinator(fleet, tmp_path) as coordinator,
        aiohttp.ClientSession(coordinator.url) as session,
    ):
        assert (await ask(session, "alpha"))[0] == 200
        env = {"MAESTROCTL_HOME": str(tmp_path / "home")}
        done = await run("serve", other, "--listen", "127.0.0.1:0", env=env)
        assert done.code == 4
        assert f"pid {os.getpid()}" in done.err
        assert (await ask(session, "alpha"))[0] == 200


# --- followers -----------------------------------------------------------------------------------


async def test_followers_that_leave_with_the_last_event_leave_no_trace(tmp_path: Path) -> None:
    file, inputs = tmp_path / "w.toml", tmp_path / "inputs.jsonl"
    file.write_text('[workflow]\nname = "w"\n[[step]]\nname = "a"\nprompt = "TOKENS 2"\n')
    inputs.write_text('{"input": "x"}\n' * 20)
    serve = ServeProcess(tmp_path / "f.toml", tmp_path / "home", free_port())
    serve.fleet_file.write_text(stub_fleet_toml(tmp_path))
    try:
        await serve.start()
        done = await run("submit", file, "--inputs", inputs, "--url", serve.url, "--json")
        assert done.document["summary"]["finished"] == 20
    finally:
        await serve.stop()
    assert "never retrieved" not in serve.log.read_text()


# --- more work than memory -----------------------------------------------------------------------

FAN = """
[workflow]
name = "fan"
[[step]]
name = "plan"
models = ["alpha"]
prompt = "TOKENS 3"
[[step]]
name = "work"
models = ["beta"]
after = ["plan"]
for_each = "{{ steps.plan.output | split }}"
prompt = "TOKENS 4"
[[step]]
name = "join"
models = ["alpha"]
after = ["work"]
prompt = "TOKENS 2"
"""


async def test_fifty_jobs_on_two_models_of_which_one_fits_all_finish_once(tmp_path: Path) -> None:
    file, inputs = tmp_path / "w.toml", tmp_path / "inputs.jsonl"
    file.write_text(FAN)
    inputs.write_text('{"input": "x"}\n' * 50)
    options = {"models": {"alpha": (), "beta": ()}, "memory": "2.2 GiB"}
    async with serving(tmp_path, **options) as (coordinator, session):
        done = await run("submit", file, "--inputs", inputs, "--url", coordinator.url, "--json")
        assert done.document["summary"]["finished"] == 50
        jobs = [one["job_id"] for one in done.document["results"]]
        assert len(set(jobs)) == 50
        for job_id in jobs[:5]:
            async with session.get(f"/api/jobs/{job_id}") as response:
                assert len((await response.json())["stages"]) == 5
        await _nothing_is_booked(coordinator)
