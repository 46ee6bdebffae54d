"""Fakes of what is behind the gateway, and a raw HTTP client that can break off anywhere."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import uvloop

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.fleet import (
    ClusterSpec,
    CoordinatorSpec,
    FleetSpec,
    GroupSpec,
    NodeSpec,
)
from maestroctl.domain.ids import ClusterName, DeviceName, EngineId, JobId, ModelName, NodeName
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSpec
from maestroctl.domain.messages import ActionAnswer, ModelAction
from maestroctl.domain.outcome import Usage
from maestroctl.domain.snapshot import DeviceSnapshot, EngineSnapshot, NodeSnapshot
from maestroctl.errors import RequestError
from maestroctl.gateway.app import GATEWAY, create_app
from maestroctl.gateway.exchange import Gateway
from maestroctl.gateway.server import GatewayServer
from maestroctl.gateway.submit import JobRequest, StageCall

DEADLINE_S = 10.0
"""No test waits longer than this for anything."""


def make_fleet(**coordinator: Any) -> FleetSpec:
    """Two models with an alias, one with an exotic name, a group and two nodes."""
    models = {
        ModelName(name): ModelSpec(name=ModelName(name), aliases=aliases, max_model_len=4096)
        for name, aliases in (
            ("qwen3-8b", ("qwen",)),
            ("org/tiny.model-1", ()),
            ("模型", ()),
        )
    }
    nodes = {
        NodeName("gpu1"): NodeSpec(NodeName("gpu1")),
        NodeName("gpu2"): NodeSpec(NodeName("gpu2"), models=(ModelName("qwen3-8b"),)),
    }
    return FleetSpec(
        models=models,
        engines={"default": EngineSpec("default", EngineKind.VLLM)},
        nodes=nodes,
        clusters={ClusterName("local"): ClusterSpec(ClusterName("local"))},
        groups={
            "coder": GroupSpec("coder", (ModelName("qwen3-8b"), ModelName("org/tiny.model-1")))
        },
        coordinator=replace(CoordinatorSpec(port=0), **coordinator),
    )


def make_snapshot(now_s: float) -> NodeSnapshot:
    """One node with one sleeping engine."""
    engine = EngineSnapshot(
        engine_id=EngineId("qwen3-8b@gpu1"),
        model=ModelName("qwen3-8b"),
        status=EngineStatus.SLEEPING,
        tier=ResidencyTier.HOST,
        generation=1,
        slots=4,
        num_running=0,
        num_waiting=0,
        ready_in_s=2.0,
        weights_bytes=8 << 30,
        context_bytes=200 << 20,
        kv_limit_bytes=0,
        kv_booked_bytes=0,
        idle_since_s=now_s - 5.0,
    )
    return NodeSnapshot(
        node=NodeName("gpu1"),
        cluster=ClusterName("local"),
        as_of_s=now_s,
        epoch=1,
        applied_seq=0,
        devices=(DeviceSnapshot(DeviceName("cuda:0"), 40 << 30, 1 << 30),),
        engines=(engine,),
        profiles=(),
        never_fits=((ModelName("模型"), "needs 80 GiB"),),
    )


# --- stages -------------------------------------------------------------------------------------

Script = Callable[["FakeReply"], AsyncIterator[bytes]]


@dataclass
class FakeReply:
    """A reply that plays a script of chunks."""

    script: Script
    model: ModelName
    status: int = 200
    content_type: str = "application/json"
    usage: Usage | None = None
    left: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    how: str = ""

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self.script(self):
                yield chunk
            self.how = "finished"
        except (asyncio.CancelledError, GeneratorExit):
            self.how = "withdrawn"
            raise
        except BaseException:
            self.how = "failed"
            raise
        finally:
            self.ended.set()

    def leave(self) -> None:
        self.left += 1
        if not self.ended.is_set():
            self.how = "withdrawn"
            self.ended.set()


@dataclass
class FakeStages:
    """A `StageService`. By default it answers at once in the dialect of the path.

    Attributes:
        before: awaited before the reply is made: queueing, waking.
        make: makes the reply of a call.
        calls: what was asked.
        cancelled: set when a call was cancelled before its first byte.
    """

    before: Callable[[StageCall], Any] | None = None
    make: Callable[[StageCall], FakeReply] | None = None
    calls: list[StageCall] = field(default_factory=list)
    replies: list[FakeReply] = field(default_factory=list)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: int = 0

    async def run(self, call: StageCall) -> FakeReply:
        self.calls.append(call)
        self.entered.set()
        self.in_flight += 1
        try:
            if self.before is not None:
                await self.before(call)
            reply = (self.make or answer_at_once)(call)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.in_flight -= 1
        self.replies.append(reply)
        return reply


def chat_document(text: str = "hello", **message: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
    }


def chat_events(texts: list[str]) -> list[bytes]:
    """Chunks of a chat stream, ``[DONE]`` last."""
    events = [sse({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})]
    events += [sse({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in texts]
    events.append(sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    return [*events, b"data: [DONE]\n\n"]


def sse(document: Any, event: str | None = None) -> bytes:
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + msgspec.json.encode(document) + b"\n\n"


def playing(*chunks: bytes | RequestError | asyncio.Event) -> Script:
    """A script: bytes are yielded, errors raised, events waited for."""

    async def script(reply: FakeReply) -> AsyncIterator[bytes]:
        for chunk in chunks:
            if isinstance(chunk, RequestError):
                raise chunk
            if isinstance(chunk, asyncio.Event):
                await chunk.wait()
            else:
                yield chunk
        reply.usage = Usage(10, 3)

    return script


def reply_with(
    call: StageCall,
    *chunks: bytes | RequestError | asyncio.Event,
    status: int = 200,
    stream: bool | None = None,
) -> FakeReply:
    is_stream = call.stream if stream is None else stream
    kind = "text/event-stream; charset=utf-8" if is_stream else "application/json"
    return FakeReply(playing(*chunks), call.stage.candidates[0], status, kind)


def answer_at_once(call: StageCall) -> FakeReply:
    if call.stream:
        return reply_with(call, *chat_events(["hel", "lo"]))
    return reply_with(call, json.dumps(chat_document()).encode())


def body_of(call: StageCall) -> dict[str, Any]:
    """The body as an engine would get it."""
    return json.loads(msgspec.json.encode(dict(call.body)))


# --- control ------------------------------------------------------------------------------------


@dataclass
class FakeControl:
    """A `ControlService` with a handful of jobs."""

    fleet: FleetSpec = field(default_factory=make_fleet)
    reason: str | None = None
    known_jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    submitted: list[JobRequest] = field(default_factory=list)
    actions: list[tuple[str, str]] = field(default_factory=list)
    action_answer: ActionAnswer = ActionAnswer()
    submit_error: Exception | None = None
    resets: list[tuple[str | None, str | None, str | None, bool]] = field(default_factory=list)
    live: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    open_feeds: int = 0
    clock_s: float | None = None
    kept: dict[tuple[ModelName, NodeName], int] = field(default_factory=dict)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() if self.clock_s is None else self.clock_s

    def nodes(self) -> tuple[NodeSnapshot, ...]:
        return (make_snapshot(self.now_s()),)

    def kept_slots(self) -> dict[tuple[ModelName, NodeName], int]:
        return dict(self.kept)

    def not_ready(self) -> str | None:
        return self.reason

    def status(self) -> dict[str, Any]:
        return {"version": "0", "pid": 1, "uptime_s": 1.0}

    def running(self) -> list[dict[str, Any]]:
        return [{"stage_id": "s1", "state": "queued"}]

    async def submit_job(self, request: JobRequest) -> JobId:
        if self.submit_error is not None:
            raise self.submit_error
        self.submitted.append(request)
        job_id = f"run-{len(self.submitted)}"
        self.known_jobs[job_id] = {"id": job_id, "status": "running"}
        return JobId(job_id)

    async def jobs(self, *, limit: int, status: str | None) -> list[dict[str, Any]]:
        jobs = [j for j in self.known_jobs.values() if status in (None, j["status"])]
        return jobs[::-1][:limit]

    async def job(self, job_id: JobId) -> dict[str, Any] | None:
        return self.known_jobs.get(job_id)

    async def cancel_job(self, job_id: JobId) -> bool:
        job = self.known_jobs.get(job_id)
        if job is None or job["status"] != "running":
            return False
        job["status"] = "cancelled"
        return True

    async def model_action(self, model: ModelName, action: ModelAction) -> ActionAnswer:
        self.actions.append((model, action))
        return self.action_answer

    async def explain(self, job_id: str, stage: str | None) -> dict[str, Any]:
        job = await self.job(JobId(job_id))
        stages = [] if stage or job is None else [{"stage_id": "st-1"}]
        near = [] if stages else ["job-1"]
        return {"job": job, "stages": stages, "decisions": [], "near": near}

    async def decisions(self, subject: str, *, limit: int) -> list[dict[str, Any]]:
        return [{"subject": subject, "kind": "route"}][:limit]

    def predictor_status(self) -> dict[str, Any]:
        return {"service": {"state": "off"}}

    async def predictor_reset(
        self,
        workflow: str | None = None,
        role: str | None = None,
        model: str | None = None,
        *,
        refitted: bool = False,
    ) -> int:
        self.resets.append((workflow, role, model, refitted))
        return 3

    async def events(self, _job_id: JobId | None = None) -> AsyncIterator[dict[str, Any]]:
        self.open_feeds += 1
        try:
            while (event := await self.live.get()) is not None:
                yield event
        finally:
            self.open_feeds -= 1


# --- server and client --------------------------------------------------------------------------


@dataclass
class Running:
    """A gateway on a real socket, with the fakes behind it."""

    server: GatewayServer
    stages: FakeStages
    control: FakeControl
    gateway: Gateway

    @property
    def url(self) -> str:
        return self.server.url


@asynccontextmanager
async def running_gateway(
    stages: FakeStages | None = None, control: FakeControl | None = None, **coordinator: Any
) -> AsyncIterator[Running]:
    stages = stages or FakeStages()
    control = control or FakeControl(make_fleet(**coordinator))
    app = create_app(stages, control, lambda: b"# metrics\n")
    server = GatewayServer(app, control.fleet.coordinator.host, 0)
    async with server:
        yield Running(server, stages, control, app[GATEWAY])


@dataclass
class RawReply:
    """What came back on a raw socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """HTTP/1.1 by hand: for bad bytes, pipelining and leaving at a chosen moment."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, running: Running) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", running.server.port))

    async def send(
        self,
        body: bytes = b"",
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        length: int | None = None,
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        if method == "POST":
            lines.append(f"Content-Length: {len(body) if length is None else length}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        await self.writer.drain()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        head = await within(self.reader.readuntil(b"\r\n\r\n"))
        first, *rest = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in rest if line)
        return int(first.split()[1]), {name.lower(): value for name, value in headers.items()}

    async def read(self) -> RawReply:
        status, headers = await self.read_head()
        if headers.get("transfer-encoding") == "chunked":
            parts = []
            while chunk := await self.read_chunk():
                parts.append(chunk)
            return RawReply(status, headers, b"".join(parts))
        body = await within(self.reader.readexactly(int(headers.get("content-length", 0))))
        return RawReply(status, headers, body)

    async def read_chunk(self) -> bytes:
        """One chunk of a chunked body; empty at its proper end.

        Raises:
            asyncio.IncompleteReadError: the connection ended without one.
        """
        size = int(await within(self.reader.readuntil(b"\r\n")), 16)
        return (await within(self.reader.readexactly(size + 2)))[:-2]

    async def post(self, body: Any, path: str = "/v1/chat/completions", **kwargs: Any) -> RawReply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.send(data, path, **kwargs)
        return await self.read()

    async def get(self, path: str, **kwargs: Any) -> RawReply:
        await self.send(path=path, method="GET", **kwargs)
        return await self.read()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


def on_uvloop(test: Callable[..., Any]) -> Callable[..., None]:
    """Run an async test on the event loop that the coordinator runs on."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def within(awaitable: Any, seconds: float = DEADLINE_S) -> Any:
    """The result, or a failure after a deadline."""
    async with asyncio.timeout(seconds):
        return await awaitable


async def until(condition: Callable[[], Any], seconds: float = DEADLINE_S) -> None:
    """Return once `condition` holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions of other people's objects
            await asyncio.sleep(0.002)


def chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "qwen3-8b", "messages": [{"role": "user", "content": text}], **fields}
