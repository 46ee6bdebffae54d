"""Health, the control API, draining and stopping, over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from maestroctl.domain.fleet import CoordinatorSpec
from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.domain.messages import ActionAnswer
from maestroctl.domain.workflow import StepSpec, WorkflowSpec
from maestroctl.errors import ConfigError, StoreError
from maestroctl.gateway.app import create_app
from maestroctl.gateway.server import GatewayServer
from tests.gateway_support import (
    FakeControl,
    FakeStages,
    RawClient,
    RawReply,
    Running,
    chat,
    chat_events,
    make_fleet,
    reply_with,
    running_gateway,
    until,
    within,
)

WORKFLOW = msgspec.to_builtins(WorkflowSpec("w", {"s": StepSpec("s", "{{ input }}")}))


async def get(running: Running, path: str, **kwargs: Any) -> RawReply:
    client = await RawClient.connect(running)
    try:
        return await client.get(path, **kwargs)
    finally:
        await client.close()


async def post(running: Running, path: str, body: Any = b"", **kwargs: Any) -> RawReply:
    client = await RawClient.connect(running)
    try:
        return await client.post(body, path, **kwargs)
    finally:
        await client.close()


async def test_health_is_about_this_process_and_ready_about_serving() -> None:
    async with running_gateway() as running:
        assert (await get(running, "/health")).json() == {"status": "ok"}
        assert (await get(running, "/ready")).json() == {"status": "ready"}
        running.control.reason = "no node is connected"
        assert (await get(running, "/health")).status == 200
        reply = await get(running, "/ready")
        assert reply.status == 503
        assert reply.json()["reason"] == "no node is connected"


async def test_models_lists_everything_configured() -> None:
    async with running_gateway() as running:
        document = (await get(running, "/v1/models")).json()
        assert (await get(running, "/j/x/v1/models")).json() == document
    entries = {entry["id"]: entry for entry in document["data"]}
    assert list(entries) == ["qwen3-8b", "org/tiny.model-1", "模型", "coder", "auto"]
    assert {entry["object"] for entry in document["data"]} == {"model"}
    assert entries["qwen3-8b"]["maestro"]["state"] == "sleeping"
    assert entries["qwen3-8b"]["maestro"]["aliases"] == ["qwen"]
    assert entries["org/tiny.model-1"]["maestro"]["state"] == "stopped"
    assert entries["coder"]["maestro"]["models"] == ["qwen3-8b", "org/tiny.model-1"]


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen", "org/tiny.model-1", "coder", "auto"])
async def test_one_model_by_any_of_its_names(name: str) -> None:
    async with running_gateway() as running:
        assert (await get(running, f"/v1/models/{name}")).json()["id"] == name


@pytest.mark.parametrize("name", ["nope", "a/../b", "..%2f..%2fetc", "%00", "%ff", "a%20b", "..."])
async def test_unknown_model_by_path_is_404(name: str) -> None:
    async with running_gateway() as running:
        reply = await get(running, f"/v1/models/{name}")
    assert reply.status == 404
    assert reply.json()["error"]["code"] == "model_not_found"


async def test_ps_shows_models_by_node_stopped_ones_too() -> None:
    async with running_gateway() as running:
        running.control.kept[ModelName("qwen3-8b"), NodeName("gpu1")] = 2
        document = (await get(running, "/api/ps")).json()
    rows = {(row["model"], row["node"]): row for row in document["models"]}
    assert set(rows) == {
        ("qwen3-8b", "gpu1"),
        ("org/tiny.model-1", "gpu1"),
        ("模型", "gpu1"),
        ("qwen3-8b", "gpu2"),
    }
    sleeping = rows["qwen3-8b", "gpu1"]
    assert (sleeping["status"], sleeping["tier"]) == ("sleeping", "host")
    assert sleeping["idle_s"] == pytest.approx(5.0, abs=1)
    assert [row["kept_slots"] for row in document["models"]].count(2) == 1
    assert sleeping["kept_slots"] == 2
    assert rows["qwen3-8b", "gpu2"]["status"] == "stopped"
    assert rows["模型", "gpu1"]["failure"] == "needs 80 GiB"
    assert len({tuple(row) for row in document["models"]}) == 1
    nodes = {node["node"]: node for node in document["nodes"]}
    assert nodes["gpu1"]["connected"]
    assert nodes["gpu1"]["devices"][0]["budget_bytes"] == 40 << 30
    assert not nodes["gpu2"]["connected"]


async def test_status_running_metrics_and_decisions() -> None:
    async with running_gateway() as running:
        await post(running, "/v1/chat/completions", chat())
        status = (await get(running, "/api/status")).json()
        assert status["gateway"] == {"held": 0, "max_held": 4000, "draining": False}
        assert (await get(running, "/running")).json()["running"][0]["stage_id"] == "s1"
        metrics = await get(running, "/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        line = b'maestroctl_gateway_answers_total{api="chat/completions",status="200"} 1\n'
        assert metrics.body.startswith(b"# metrics\n")
        assert line in metrics.body
        decisions = await get(running, "/api/decisions?subject=job-1")
        assert decisions.json()["decisions"] == [{"subject": "job-1", "kind": "route"}]
        assert (await get(running, "/api/decisions")).json()["error"]["param"] == "subject"


@pytest.mark.parametrize("limit", ["0", "-1", "x", "", "99999999999999999999", "1e3", "%C2%B2"])
async def test_bad_limit_is_400(limit: str) -> None:
    async with running_gateway() as running:
        reply = await get(running, f"/api/jobs?limit={limit}")
    assert (reply.status, reply.json()["error"]["param"]) == (400, "limit")


async def test_life_of_a_job() -> None:
    async with running_gateway() as running:
        body = {"workflow": WORKFLOW, "input": "x", "class": "batch"}
        created = await post(running, "/api/jobs", body)
        assert (created.status, created.json()["job_id"]) == (201, "run-1")
        assert running.control.submitted[0].input == "x"
        assert [j["id"] for j in (await get(running, "/api/jobs")).json()["jobs"]] == ["run-1"]
        assert (await get(running, "/api/jobs?status=failed")).json()["jobs"] == []
        assert (await get(running, "/api/jobs?status=odd")).status == 400
        assert (await get(running, "/api/jobs/run-1")).json()["status"] == "running"
        assert (await post(running, "/api/jobs/run-1/cancel")).json()["cancelled"] is True
        again = await post(running, "/api/jobs/run-1/cancel")
        assert (again.status, again.json()["error"]["code"]) == (409, "conflict")
        for reply in (
            await get(running, "/api/jobs/none"),
            await post(running, "/api/jobs/none/cancel"),
            await get(running, "/api/jobs/none/events"),
        ):
            assert (reply.status, reply.json()["error"]["code"]) == (404, "job_not_found")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"workflow": 1}', b"\xff", b'{"a":' * 9999])
async def test_bad_job_is_400(body: bytes) -> None:
    async with running_gateway() as running:
        reply = await post(running, "/api/jobs", body)
    assert (reply.status, running.control.submitted) == (400, [])


async def test_errors_from_behind_keep_their_meaning() -> None:
    async with running_gateway() as running:
        running.control.submit_error = ConfigError("step 's': unknown model", key="step[0].models")
        reply = await post(running, "/api/jobs", {"workflow": WORKFLOW})
        assert (reply.status, reply.json()["error"]["param"]) == (400, "step[0].models")
        running.control.submit_error = StoreError("the disk is full")
        assert (await post(running, "/api/jobs", {"workflow": WORKFLOW})).status == 503
        running.control.submit_error = RuntimeError("secret")
        reply = await post(running, "/api/jobs", {"workflow": WORKFLOW})
        assert reply.status == 500
        assert b"secret" not in reply.body


async def test_events_of_a_job_end_with_it_and_beat_while_nothing_happens() -> None:
    async with running_gateway(heartbeat_s=0.05) as running:
        await post(running, "/api/jobs", {"workflow": WORKFLOW})
        client = await RawClient.connect(running)
        await client.send(path="/api/jobs/run-1/events", method="GET")
        _, headers = await client.read_head()
        assert headers["content-type"].startswith("text/event-stream")
        assert await client.read_chunk() == b": open\n\n"
        assert await client.read_chunk() == b": waiting\n\n"
        running.control.live.put_nowait({"type": "stage_started", "stage": "s"})
        while (chunk := await client.read_chunk()).startswith(b":"):
            pass
        assert chunk == b'event: stage_started\ndata: {"type":"stage_started","stage":"s"}\n\n'
        running.control.live.put_nowait(None)
        while await client.read_chunk():
            pass
        await client.close()


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen", "org/tiny.model-1", "模型"])
async def test_models_are_told_by_any_name(name: str) -> None:
    async with running_gateway() as running:
        reply = await post(running, f"/api/models/{quote(name)}/wake")
    assert reply.json()["done"] is True
    model = "qwen3-8b" if name == "qwen" else name
    assert running.control.actions == [(ModelName(model), "wake")]


async def test_what_was_so_already_is_not_called_done() -> None:
    async with running_gateway() as running:
        running.control.action_answer = ActionAnswer(note="is asleep already")
        reply = await post(running, "/api/models/qwen/sleep")
    assert reply.status == 200
    assert (reply.json()["done"], reply.json()["note"]) == (False, "is asleep already")


async def test_what_models_cannot_be_told() -> None:
    async with running_gateway() as running:
        assert (await post(running, "/api/models/qwen/dance")).status == 404
        assert (await post(running, "/api/models/nope/wake")).status == 404
        assert (await post(running, "/api/models/coder/wake")).status == 400
        assert (await get(running, "/api/models/qwen/wake")).status == 405
        running.control.action_answer = ActionAnswer("no room: 3 GiB short")
        reply = await post(running, "/api/models/qwen/wake")
    assert reply.status == 409
    assert "3 GiB short" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("GET", "/v2/models", 404, None),
        ("POST", "/v1/nothing", 404, None),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("POST", "/health", 405, "GET, HEAD"),
        ("PUT", "/api/jobs", 405, "GET, POST, HEAD"),
        ("OPTIONS", "/v1/chat/completions", 405, "POST"),
        ("GET", "/j//v1/models", 404, None),
        ("GET", "/v1/models/", 404, None),
    ],
)
async def test_wrong_paths_and_methods_have_the_usual_shape(
    method: str, path: str, status: int, allow: str | None
) -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        await client.send(path=path, method=method)
        reply = await client.read()
        await client.close()
    assert (reply.status, reply.headers.get("allow")) == (status, allow)
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


async def test_pages_of_other_origins_cannot_control() -> None:
    async with running_gateway() as running:
        body = {"workflow": WORKFLOW}
        evil = await post(running, "/api/jobs", body, headers={"Origin": "http://evil.com"})
        assert (evil.status, evil.json()["error"]["code"]) == (403, "forbidden")
        own = await post(running, "/api/jobs", body, headers={"Origin": "http://localhost"})
        assert own.status == 201
        client = await RawClient.connect(running)
        client.writer.write(b"GET /api/jobs HTTP/1.1\r\nHost: rebound.evil.com\r\n\r\n")
        assert (await client.read()).status == 403
        await client.close()


# --- draining and stopping ----------------------------------------------------------------------


async def test_draining_refuses_new_requests_and_lets_open_ones_finish() -> None:
    release = asyncio.Event()
    events = chat_events(["a"])
    stages = FakeStages(make=lambda call: reply_with(call, events[0], release, *events[1:]))
    async with running_gateway(stages) as running:
        client = await RawClient.connect(running)
        await client.send(json.dumps(chat(stream=True)).encode())
        await client.read_head()
        await client.read_chunk()
        drain = asyncio.create_task(running.server.drain(10))
        await until(lambda: running.gateway.gate.is_draining)
        refused = await post(running, "/v1/chat/completions", chat())
        assert (refused.status, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "5"
        assert (await get(running, "/ready")).status == 503
        assert (await get(running, "/health")).status == 200
        assert (await post(running, "/api/jobs", {"workflow": WORKFLOW})).status == 503
        assert not drain.done()
        release.set()
        assert await within(drain) is True
        while await client.read_chunk():
            pass
        await client.close()


async def test_drain_that_takes_too_long_says_so() -> None:
    async def wait(_call: Any) -> None:
        await asyncio.Event().wait()

    async with running_gateway(FakeStages(before=wait)) as running:
        client = await RawClient.connect(running)
        await client.send(json.dumps(chat()).encode())
        await until(lambda: running.server.held == 1)
        assert await running.server.drain(0.05) is False
        await client.close()


async def test_stop_ends_open_requests_visibly() -> None:
    never = asyncio.Event()
    first = chat_events([])[0]
    stages = FakeStages(make=lambda call: reply_with(call, first, never))
    async with running_gateway(stages) as running:
        streaming, whole, feed = [await RawClient.connect(running) for _ in range(3)]
        await streaming.send(json.dumps(chat(stream=True)).encode())
        await streaming.read_head()
        assert await streaming.read_chunk() == first
        await whole.send(json.dumps(chat()).encode())
        await feed.send(path="/api/events", method="GET")
        await feed.read_head()
        await until(lambda: running.server.held == 2)
        await within(running.server.stop(), 3)
        assert b"shutting_down" in await streaming.read_chunk()
        with pytest.raises(asyncio.IncompleteReadError):
            await streaming.read_chunk()
        reply = await whole.read()
        assert (reply.status, reply.json()["error"]["code"]) == (503, "shutting_down")
        assert await feed.read_chunk() == b": open\n\n"
        for client in (streaming, whole, feed):
            await client.close()
    assert [reply.how for reply in stages.replies] == ["withdrawn", "withdrawn"]


async def test_port_in_use_is_explained() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = GatewayServer(create_app(FakeStages(), FakeControl(), bytes), "127.0.0.1", port)
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}") as caught:
            await server.start()
    assert caught.value.hint is not None


async def test_open_address_needs_keys(tmp_path: Path) -> None:
    server = GatewayServer(create_app(FakeStages(), FakeControl(), bytes), "0.0.0.0", 0)
    with pytest.raises(ConfigError, match="needs API keys"):
        await server.start()
    file = tmp_path / "keys"
    file.write_text("k\n")
    file.chmod(0o600)
    fleet = make_fleet(api_keys_file=str(file), host="0.0.0.0")
    async with GatewayServer(
        create_app(FakeStages(), FakeControl(fleet), bytes), "0.0.0.0", 0
    ) as server:
        assert server.port > 0


async def test_noise_from_outside_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        client.writer.write(b"\x16\x03\x01 this is TLS\r\n\r\n")
        await client.read_head()
        await client.close()
    assert not caplog.records


def test_defaults_are_those_of_the_fleet_file() -> None:
    assert CoordinatorSpec().max_held == 4000
