"""One run of one step: LLM calls with tool rounds between them, until the model has answered.

::

    render -> call -> [tool calls -> run tools -> call]... -> output

1. The prompt is rendered and becomes a conversation.
2. A call is handed to the `StageService` as a stage of its own and read as a stream, so that its
   progress can be seen. A failed one is handed in again as `retry` says, under a new stage id:
   nobody has seen its output.
3. Tools the model asked for run side by side; their results are appended and the next round
   begins. In the last round tools are withheld, so that the model has to answer.

Cancelling the task withdraws the stage wherever it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from maestroctl.domain.ids import StageId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.domain.stage_text import StageText
from maestroctl.errors import InvalidRequest, Overloaded, RequestError, UpstreamFailed
from maestroctl.gateway.submit import StageCall, StageReply, StageService
from maestroctl.live.workflow.job import JobRun
from maestroctl.live.workflow.messages import (
    Conversation,
    TokenRatios,
    describe_options,
    tools_digest,
)
from maestroctl.live.workflow.progress import OnProgress, Progress, ProgressKind
from maestroctl.live.workflow.retry import RetryPolicy, StepError
from maestroctl.live.workflow.sse import (
    Completion,
    CompletionAssembler,
    SseParser,
    ToolCallRequest,
    error_text,
    parse_document,
)
from maestroctl.live.workflow.tools import ToolRunner
from maestroctl.scheduler.events import CoordinatorEvent, StepRef, ToolsRan

PATH = "/v1/chat/completions"
_MAX_ERROR_BYTES = 64 << 10

_TOOLS_HINT = (
    'the engine has no tool parser: add engine_args = ["--enable-auto-tool-choice",'
    ' "--tool-call-parser", "hermes"] (or the parser of this model) to its [[model]]'
)


@dataclass(frozen=True, slots=True)
class StepServices:
    """What a run of a step needs from outside.

    Attributes:
        stages: runs LLM calls.
        post: gives an event to the core.
        now_s: the core's clock.
        new_stage_id: unique over the life of the state database.
        predict: expected output of a stage, shown as progress; None = nothing is shown.
        on_progress: told what happens.
        sleep: waits that many seconds.
    """

    stages: StageService
    post: Callable[[CoordinatorEvent], None]
    now_s: Callable[[], float]
    new_stage_id: Callable[[], StageId]
    predict: Callable[[StageDescriptor, StageText], Prediction] | None
    on_progress: OnProgress
    sleep: Callable[[float], Awaitable[None]]
    tool_runner: ToolRunner
    ratios: TokenRatios


class StepRun:
    """One run of one step of a job."""

    def __init__(self, services: StepServices, job: JobRun, ref: StepRef) -> None:
        self._services = services
        self._job = job
        self._ref = ref
        self._plan = job.plan(ref.step)
        self._round = 0

    async def execute(self) -> str:
        """Run it to its end.

        Returns:
            The text the model answered with.

        Raises:
            StepError: it cannot end well.
            TemplateMistake: it cannot be rendered.
        """
        step, tools = self._plan.spec, self._plan.tools
        system, prompt = self._job.render(self._ref)
        conversation = Conversation(step, system, prompt, tools)
        while True:
            may_call = bool(tools) and self._round < step.max_tool_rounds
            completion = await self._call(conversation, allow_tools=may_call)
            if not completion.tool_calls or not tools:
                return completion.text
            if not may_call:
                return self._answer_of_last_round(completion)
            conversation.add_tool_round(completion, await self._run_tools(completion))
            self._round += 1

    def _answer_of_last_round(self, completion: Completion) -> str:
        if completion.text.strip():
            return completion.text
        raise StepError(
            Outcome.FAILED,
            f"the model still asked for tools after {self._round} tool rounds and gave no answer",
        )

    # --- one LLM call ---------------------------------------------------------------------------

    async def _call(self, conversation: Conversation, *, allow_tools: bool) -> Completion:
        """One call, handed in again when it fails and that may help."""
        policy = RetryPolicy(self._job.deadline_s)
        place = self._job.count_stage(self._plan.spec.role)
        while True:
            stage = self._describe(conversation, place, allow_tools=allow_tools)
            try:
                return await self._attempt(stage, conversation, allow_tools=allow_tools)
            except RequestError as exc:
                wait_s = policy.next_wait_s(exc, self._services.now_s())
                self._tell(ProgressKind.STAGE_RETRIED, stage.stage_id, text=str(exc))
                await self._services.sleep(wait_s)

    def _describe(
        self, conversation: Conversation, place: tuple[int, int], *, allow_tools: bool
    ) -> StageDescriptor:
        step, tools = self._plan.spec, self._plan.tools
        return StageDescriptor(
            stage_id=self._services.new_stage_id(),
            job_id=self._job.job_id,
            candidates=self._job.candidates[step.name],
            arrival_s=self._services.now_s(),
            prompt_tokens=conversation.prompt_tokens(self._services.ratios.get(step.role)),
            workflow=self._job.workflow.name,
            step=step.name,
            role=step.role,
            service_class=self._job.service_class,
            deadline_s=self._job.deadline_s,
            position=place[0],
            depth=self._job.depths[step.name],
            invocation_index=place[1],
            max_tokens=step.max_tokens,
            tools_available=len(tools),
            tools_digest=tools_digest(tools),
            external=False,
            **describe_options(step.options, allow_tools=allow_tools),
        )

    async def _attempt(
        self, stage: StageDescriptor, conversation: Conversation, *, allow_tools: bool
    ) -> Completion:
        text = conversation.text()
        expected = self._services.predict(stage, text) if self._services.predict else None
        started_s = self._services.now_s()
        self._tell(
            ProgressKind.STAGE_STARTED,
            stage.stage_id,
            expected_tokens=expected.output_q50 if expected else None,
        )
        call = StageCall(
            stage,
            text,
            PATH,
            conversation.body(allow_tools=allow_tools),
            stream=True,
            wants_usage=True,
        )
        reply = await self._services.stages.run(call)
        try:
            completion = await self._read(reply, stage.stage_id, started_s)
        finally:
            reply.leave()
        if completion.usage is not None:
            counted = completion.usage.prompt_tokens
            self._services.ratios.learn(stage.role, conversation.num_bytes(), counted)
        self._tell(
            ProgressKind.STAGE_ENDED,
            stage.stage_id,
            model=reply.model,
            output_tokens=completion.usage.output_tokens if completion.usage else None,
            seconds=self._services.now_s() - started_s,
        )
        return completion

    async def _read(self, reply: StageReply, stage_id: StageId, started_s: float) -> Completion:
        """The complete answer of a reply, whatever its form."""
        if reply.status >= 400:
            raise await _refusal(reply)
        assembler = CompletionAssembler()
        if not reply.content_type.startswith("text/event-stream"):
            body = await _read_all(reply)
            added = assembler.add_whole(body.decode("utf-8", "replace"))
            self._tell_text(assembler, reply, stage_id, started_s, added, is_first=True)
            return assembler.finish(reply.usage)
        parser = SseParser()
        async with _closing(reply) as chunks:
            async for chunk in chunks:
                self._take(parser.feed(chunk), assembler, reply, stage_id, started_s)
        self._take(parser.end(), assembler, reply, stage_id, started_s)
        return assembler.finish(reply.usage)

    def _take(
        self,
        events: list[str],
        assembler: CompletionAssembler,
        reply: StageReply,
        stage_id: StageId,
        started_s: float,
    ) -> None:
        for data in events:
            had_output = assembler.has_output
            added = assembler.add(data)
            if assembler.has_output:
                self._tell_text(
                    assembler, reply, stage_id, started_s, added, is_first=not had_output
                )

    def _tell_text(
        self,
        assembler: CompletionAssembler,
        reply: StageReply,
        stage_id: StageId,
        started_s: float,
        added: str,
        *,
        is_first: bool,
    ) -> None:
        if is_first:
            ttft_s = self._services.now_s() - started_s
            self._tell(ProgressKind.FIRST_TOKEN, stage_id, model=reply.model, ttft_s=ttft_s)
        if added:
            self._tell(
                ProgressKind.TEXT,
                stage_id,
                model=reply.model,
                text=added,
                output_tokens=assembler.output_tokens,
            )

    # --- tools ----------------------------------------------------------------------------------

    async def _run_tools(self, completion: Completion) -> list[str]:
        """Results in the order of the calls; the calls run side by side."""
        started_s = self._services.now_s()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._run_tool(call, index))
                for index, call in enumerate(completion.tool_calls)
            ]
        seconds = self._services.now_s() - started_s
        self._services.post(ToolsRan(self._job.job_id, self._ref.step, seconds))
        return [task.result() for task in tasks]

    async def _run_tool(self, call: ToolCallRequest, index: int) -> str:
        ref = self._ref
        place = (self._job.job_id, ref.step, ref.visit, ref.item, self._round, index)
        self._tell(ProgressKind.TOOL_CALLED, text=call.name)
        started_s = self._services.now_s()
        result = await self._services.tool_runner.run(
            self._job.tools, self._plan.spec.tools, call, "/".join(map(str, place))
        )
        word = "failed" if result.is_error else "returned"
        self._tell(
            ProgressKind.TOOL_RETURNED,
            text=f"{call.name} {word}",
            seconds=self._services.now_s() - started_s,
        )
        return result.text

    # --------------------------------------------------------------------------------------------

    def _tell(
        self,
        kind: ProgressKind,
        stage_id: StageId | None = None,
        *,
        model: str | None = None,
        text: str = "",
        output_tokens: int | None = None,
        expected_tokens: float | None = None,
        ttft_s: float | None = None,
        seconds: float | None = None,
    ) -> None:
        self._services.on_progress(
            Progress(
                kind,
                self._job.job_id,
                self._ref,
                self._round,
                stage_id,
                model,
                text,
                output_tokens,
                expected_tokens,
                ttft_s,
                seconds,
            )
        )


async def _refusal(reply: StageReply) -> RequestError:
    """The error an engine answered with."""
    raw = (await _read_all(reply, limit=_MAX_ERROR_BYTES)).decode("utf-8", "replace")
    message = raw[:500].strip()
    try:
        message = error_text(parse_document(raw))
    except UpstreamFailed as exc:
        if raw.lstrip().startswith("{"):
            message = str(exc).removeprefix("the engine failed: ")
    text = f"the engine answered {reply.status}: {message or 'no text'}"
    if reply.status == 429:
        return Overloaded(text)
    if reply.status >= 500:
        return UpstreamFailed(text)
    if "tool-call-parser" in message or "tool_call_parser" in message:
        text = f"{text}; {_TOOLS_HINT}"
    return InvalidRequest(text)


async def _read_all(reply: StageReply, limit: int = 16 << 20) -> bytes:
    parts: list[bytes] = []
    length = 0
    async with _closing(reply) as chunks:
        async for chunk in chunks:
            parts.append(chunk)
            length += len(chunk)
            if length > limit:
                break
    return b"".join(parts)[:limit]


@asynccontextmanager
async def _closing(reply: StageReply) -> AsyncIterator[AsyncIterator[bytes]]:
    """The chunks of a reply, closed at once when they are left early."""
    chunks = reply.chunks()
    try:
        yield chunks
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()
