"""A host for the runner: scripted models on one side, the real workflow walk on the other."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.outcome import JobStatus, Usage
from maestroctl.errors import RequestError
from maestroctl.gateway.submit import JobRequest, StageCall
from maestroctl.live.workflow.progress import Progress, ProgressKind
from maestroctl.live.workflow.runner import WorkflowRunner
from maestroctl.scheduler.effects import FinishJob, PrepareStep, RunStep
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    StepFailed,
    StepFinished,
    StepPrepared,
    StepRef,
    StepResult,
    ToolsRan,
)
from maestroctl.scheduler.workflow_progress import WorkflowProgress
from maestroctl.store.rows import StepResultRow

JOB = JobId("job-1")
MODEL = ModelName("smollm2")


@dataclass
class Say:
    """One scripted answer.

    Attributes:
        calls: (name, arguments text) of tool calls.
        finish: its finish_reason; None = the stream just stops.
        fail: raised in place of an answer, or after the text when `late`.
        hold: never finishes: waits for ever after the text.
    """

    text: str = ""
    calls: Sequence[tuple[str, str]] = ()
    finish: str | None = "stop"
    fail: Exception | None = None
    late: bool = False
    hold: bool = False
    status: int = 200
    body: bytes | None = None
    content_type: str = "text/event-stream"


Script = Callable[[StageCall], Say | str]


class FakeReply:
    """Streams a scripted answer in small, badly cut pieces."""

    def __init__(self, say: Say, stages: FakeStages) -> None:
        self.status = say.status
        self.content_type = say.content_type
        self.model = MODEL
        self.usage: Usage | None = None
        self._say = say
        self._stages = stages
        self._left = False

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._say.body is not None:
            yield self._say.body
            return
        raw = b"".join(_events(self._say))
        for start in range(0, len(raw), 37):
            await asyncio.sleep(0)
            yield raw[start : start + 37]
        if self._say.hold:
            self._stages.holding.set()
            await asyncio.Event().wait()
        if self._say.fail is not None:
            raise self._say.fail
        self.usage = Usage(20, max(1, len(self._say.text.split())))

    def leave(self) -> None:
        if not self._left:
            self._left = True
            self._stages.left += 1
            self._stages.gone.set()


class FakeStages:
    """A `StageService` that answers by script and remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.calls: list[StageCall] = []
        self.left = 0
        self.holding = asyncio.Event()
        self.gone = asyncio.Event()

    async def run(self, call: StageCall) -> FakeReply:
        self.calls.append(call)
        say = self._script(call)
        if isinstance(say, str):
            say = Say(say)
        if say.fail is not None and not say.late:
            raise say.fail
        return FakeReply(say, self)


def _events(say: Say) -> Iterable[bytes]:
    yield b": heartbeat\n\n"
    half = len(say.text) // 2
    for part in (say.text[:half], say.text[half:]):
        if part:
            yield _event({"choices": [{"index": 0, "delta": {"content": part}}]})
    for index, (name, arguments) in enumerate(say.calls):
        cut = len(arguments) // 2
        head = {"index": index, "id": f"id-{index}", "function": {"name": name}}
        yield _event({"choices": [{"index": 0, "delta": {"tool_calls": [head]}}]})
        for part in (arguments[:cut], arguments[cut:]):
            tail = {"index": index, "function": {"arguments": part}}
            yield _event({"choices": [{"index": 0, "delta": {"tool_calls": [tail]}}]})
    if say.finish is not None and not say.hold:
        yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": say.finish}]})
        yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\r\n\r\n"


@dataclass
class FakeHost:
    """Drives one job from its first step to its end.

    Attributes:
        rows: what the store would have.
        failed: the event that ended the job badly.
        waits_s: what the runner slept for.
    """

    script: Script
    allow_tools: tuple[str, ...] = ()
    rows: list[StepResultRow] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    tools_ran: list[ToolsRan] = field(default_factory=list)
    prepared: list[PrepareStep] = field(default_factory=list)
    failed: StepFailed | None = None
    waits_s: list[float] = field(default_factory=list)
    clock_s: float = 1000.0

    def __post_init__(self) -> None:
        self.stages = FakeStages(self.script)
        numbers = itertools.count(1)
        self.over = asyncio.Event()
        self.runner = WorkflowRunner(
            self.stages,
            self.post,
            self.record,
            lambda name: (MODEL,) if name in ("auto", MODEL) else (),
            lambda: self.clock_s,
            lambda: StageId(f"stage-{next(numbers)}"),
            on_progress=self.progress.append,
            allow_tools=self.allow_tools,
            wall_s=lambda: 1.0,
            sleep=self._sleep,
        )

    async def run_job(
        self,
        request: JobRequest,
        finished: Sequence[StepResultRow] = (),
        *,
        deadline_s: float | None = None,
        wait: bool = True,
    ) -> str | None:
        """Run to the end; the output, or None when the job failed."""
        self.rows.extend(finished)
        self.runner.add_job(JOB, request, finished, deadline_s=deadline_s)
        results = [
            StepResult(StepRef(row.step, row.visit, row.item), row.num_items, row.repeat)
            for row in finished
        ]
        self.walk = WorkflowProgress(JOB, request.workflow, results)
        self._carry_out(self.walk.begin())
        if not wait:
            return None
        async with asyncio.timeout(10):
            await self.over.wait()
        output = self.runner.finish(FinishJob(JOB, JobStatus.FINISHED))
        return output if self.failed is None else None

    def post(self, event: CoordinatorEvent) -> None:
        match event:
            case StepPrepared():
                self._carry_out(self.walk.prepared(event.step, event.visit, event.num_items))
            case StepFinished():
                self._carry_out(self.walk.finished(event.result))
            case StepFailed():
                self.failed = event
                self.over.set()
            case ToolsRan():
                self.tools_ran.append(event)
            case _:
                raise AssertionError(event)

    def record(self, row: StepResultRow, event: StepFinished) -> None:
        """A commit takes a moment; the event comes after it."""
        self.rows.append(row)
        asyncio.get_running_loop().call_soon(self.post, event)

    def prompts(self) -> list[str]:
        """User texts in the order they were handed in."""
        return [call.body["messages"][-1]["content"] for call in self.stages.calls]

    def kinds(self) -> list[ProgressKind]:
        return [event.kind for event in self.progress]

    def _carry_out(self, effects: Sequence[PrepareStep | RunStep] | None) -> None:
        for effect in effects or ():
            if isinstance(effect, PrepareStep):
                self.prepared.append(effect)
            self.runner.carry_out(effect)
        if self.walk.is_finished:
            self.over.set()

    async def _sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.clock_s += seconds
        await asyncio.sleep(0)


def fails(error: RequestError, *, late: bool = False, text: str = "") -> Say:
    """A failure, before the first byte or after some text."""
    return Say(text, fail=error, late=late, finish=None)
