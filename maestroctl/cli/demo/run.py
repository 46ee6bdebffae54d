"""Runs the plan: coordinator up, both workflows at once, a plain request, everything down.

1. the batch workflow and the interactive one are submitted together: three cold starts, one at a
   time, since the memory holds one engine that starts beside two that sleep;
2. a plain OpenAI request goes through the gateway;
3. the interactive workflow runs again: now every change of model is a wake.

Whatever happens (an error, Ctrl-C at any moment, a second Ctrl-C), the engines and the daemon are
stopped and the folder is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from maestroctl.cli.board import JobBoard
from maestroctl.cli.demo.engine_watch import EngineWatch
from maestroctl.cli.demo.family import ProcessFamily
from maestroctl.cli.demo.plan import MODEL_NAMES, DemoPlan
from maestroctl.cli.demo.screen import DemoScreen
from maestroctl.cli.demo.workflows import NOTES, QUESTIONS
from maestroctl.cli.follow import is_over
from maestroctl.cli.live_view import View
from maestroctl.cli.wiring import Coordinator, CoordinatorOptions
from maestroctl.domain.ids import JobId
from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.units import format_seconds
from maestroctl.domain.workflow import WorkflowSpec
from maestroctl.errors import EngineError, MaestroError
from maestroctl.gateway.submit import JobRequest

_READY_LIMIT_S = 60.0
_JOB_LIMIT_S = 900.0
"""Far above what a slow machine needs; past it something hangs."""
_POLL_S = 0.05
_ASK_EVERY_S = 2.0
_LOOK_S = 1.0


@dataclass(slots=True)
class DemoResult:
    """What came out.

    Attributes:
        jobs: their documents, in the order of submission, with a title each.
        request: the plain request: what was asked, what came back, seconds.
    """

    plan: DemoPlan
    engines: EngineWatch
    jobs: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    request: dict[str, Any] = field(default_factory=dict)
    took_s: float = 0.0


async def run_demo(
    plan: DemoPlan, folder: Path, family: ProcessFamily, screen: DemoScreen, view: View
) -> DemoResult:
    """Everything from start to stop.

    Args:
        folder: the demo's own; removed at the end.
        family: ends what is left behind.

    Raises:
        MaestroError: a model, a job or the coordinator failed.
    """
    started_s = time.monotonic()
    options = CoordinatorOptions(home=folder, notify=view.notice)
    coordinator = Coordinator(plan.fleet, options)
    try:
        await coordinator.start()
        try:
            session = _Session(plan, coordinator, family, screen, view)
            result = await session.run()
        finally:
            screen.phase = "stopping the engines"
            view.line(screen.phase)
            await coordinator.stop()
    finally:
        # What the coordinator could not stop, because it was interrupted or has failed.
        await asyncio.to_thread(family.end)
        shutil.rmtree(folder, ignore_errors=True)
    result.took_s = time.monotonic() - started_s
    return result


class _Session:
    """One run against a coordinator that is up."""

    def __init__(
        self,
        plan: DemoPlan,
        coordinator: Coordinator,
        family: ProcessFamily,
        screen: DemoScreen,
        view: View,
    ) -> None:
        self._plan = plan
        self._coordinator = coordinator
        self._control = coordinator.control
        self._family = family
        self._screen = screen
        self._view = view
        self._result = DemoResult(plan, screen.engines)
        self._ended: dict[str, asyncio.Event] = {}
        self._hopeless: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> DemoResult:
        async with self._watching():
            work = asyncio.ensure_future(self._work())
            try:
                ends: set[asyncio.Future[Any]] = {work, self._coordinator.failed, self._hopeless}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not work.done():
                    work.cancel()
                    await asyncio.wait({work})
            if self._coordinator.failed.done():
                self._coordinator.failed.result()
            if self._hopeless.done():
                raise EngineError(self._hopeless.result())
            return work.result()

    async def _work(self) -> DemoResult:
        await self._wait_ready()
        url = f"{self._coordinator.url}/v1"
        self._screen.url = url
        self._view.notice(f"OpenAI base URL while this runs: {url}")
        self._screen.phase = "both workflows run; each model starts when it is first needed"
        digest = asyncio.ensure_future(self._job("digest (batch)", self._plan.digest, NOTES))
        try:
            await self._job("answer (interactive)", self._plan.answer, QUESTIONS[0])
            self._screen.phase = f"a plain OpenAI request to {url}"
            await self._plain_request()
            if not self._plan.is_tight:
                self._screen.phase = "the interactive workflow again: models only have to wake"
                await self._job("answer again", self._plan.answer, QUESTIONS[1])
            await digest
        finally:
            if not digest.done():
                digest.cancel()
                await asyncio.wait({digest})
        return self._result

    async def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + _READY_LIMIT_S
        while (reason := self._control.not_ready()) is not None:
            if time.monotonic() > deadline_s:
                raise EngineError(f"the demo cannot serve its models: {reason}")
            await asyncio.sleep(_POLL_S)

    async def _job(self, title: str, workflow: WorkflowSpec, given: Any) -> None:
        request = JobRequest(workflow, input=list(given) if isinstance(given, tuple) else given)
        job_id = await self._control.submit_job(request)
        board = JobBoard(self._screen.now_s, workflow)
        self._screen.boards[job_id] = (title, board)
        self._view.line(f"{title}: submitted as {job_id}")
        try:
            job = await asyncio.wait_for(self._over(job_id), _JOB_LIMIT_S)
        except TimeoutError:
            limit = format_seconds(_JOB_LIMIT_S)
            raise MaestroError(f"{title} did not end within {limit}") from None
        self._result.jobs.append((title, _with_first_tokens(job, board)))
        self._view.line(f"{title}: {job['status']}")
        if job["status"] != JobStatus.FINISHED:
            raise MaestroError(f"{title} {job['status']}: {job['reason']}", hint=self._log_hint())

    async def _over(self, job_id: JobId) -> dict[str, Any]:
        """The job's document once it is over."""
        ended = self._ended[job_id] = asyncio.Event()
        while True:
            # Its event may have come before anybody waited for it, so the job is asked as well.
            job = await self._control.job(job_id)
            assert job is not None, "it was submitted"
            if is_over(job):
                return job
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _ASK_EVERY_S)

    def _log_hint(self) -> str | None:
        failures = [f"{model}: {text}" for model, text in self._screen.engines.failures.items()]
        return "\n".join(failures) or None

    async def _plain_request(self) -> None:
        model = MODEL_NAMES[0]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Say hello in one word."}],
            "max_tokens": 8,
            "temperature": 0,
        }
        began_s = time.monotonic()
        url = f"{self._coordinator.url}/v1/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            document = await response.json()
        if response.status != 200:
            raise MaestroError(f"the plain request failed with {response.status}: {document}")
        took_s = time.monotonic() - began_s
        text = document["choices"][0]["message"]["content"]
        self._result.request = {"model": model, "text": text, "seconds": round(took_s, 3)}
        self._view.line(f"plain request to {model}: answered after {took_s:.1f} s")

    # --- watching -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._watch_events()), asyncio.create_task(self._look())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_events(self) -> None:
        async for event in self._control.events():
            if event["type"] == "node":
                self._see_node()
            elif event["job_id"] in self._screen.boards:
                title, board = self._screen.boards[event["job_id"]]
                line = board.apply(event)
                if line is not None:
                    self._view.line(f"{title.split(' ')[0]}: {line}")
                if event["type"] == "job_finished" and event["job_id"] in self._ended:
                    self._ended[event["job_id"]].set()

    def _see_node(self) -> None:
        for snapshot in self._control.nodes():
            for line in self._screen.engines.see(snapshot, self._screen.now_s()):
                self._view.line(line)
        reason = self._screen.engines.hopeless
        if reason is not None and not self._hopeless.done():
            self._hopeless.set_result(reason)

    async def _look(self) -> None:
        while True:
            self._family.look()
            await asyncio.sleep(_LOOK_S)


def _with_first_tokens(job: dict[str, Any], board: JobBoard) -> dict[str, Any]:
    """The job with the first *token* of each stage; the store knows the first byte of the answer,
    which an engine may send before it has computed anything."""
    first = {row.stage_id: row.ttft_s for row in board.rows.values() if row.ttft_s is not None}
    stages = [
        {**stage, "ttft_s": first.get(stage["stage_id"], stage["ttft_s"])}
        for stage in job["stages"]
    ]
    return {**job, "stages": stages}
