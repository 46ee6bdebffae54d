"""Answers what the command line asks about jobs, models and decisions (a `ControlService`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from maestroctl import __version__
from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.ids import JobId, ModelName, NodeName
from maestroctl.domain.messages import ActionAnswer, ModelAction
from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.gateway.submit import JobRequest
from maestroctl.live.coordinator import views
from maestroctl.live.coordinator.background_refit import BackgroundRefit
from maestroctl.live.coordinator.explain import explain_job
from maestroctl.live.coordinator.host import CoordinatorHost
from maestroctl.live.coordinator.jobs import JobDesk
from maestroctl.live.coordinator.predictor_service import LearnedModels
from maestroctl.live.coordinator.predictor_views import predictor_view
from maestroctl.store.database import Store
from maestroctl.store.journal import Journal


class Control:
    """See `gateway.submit.ControlService` for what each method promises."""

    def __init__(
        self,
        host: CoordinatorHost,
        desk: JobDesk,
        store: Store,
        journal: Journal,
        learned: LearnedModels,
        refit: BackgroundRefit,
    ) -> None:
        self.fleet: FleetSpec = host.fleet
        self._host = host
        self._desk = desk
        self._store = store
        self._journal = journal
        self._learned = learned
        self._refit = refit
        self._started_s = host.now_s()

    def now_s(self) -> float:
        """The core's clock."""
        return self._host.now_s()

    def nodes(self) -> tuple[NodeSnapshot, ...]:
        """Last snapshots of the connected nodes."""
        return tuple(self._host.snapshots.values())

    def kept_slots(self) -> dict[tuple[ModelName, NodeName], int]:
        """Slots kept for interactive stages."""
        return self._host.core.kept_slots()

    def not_ready(self) -> str | None:
        """Why nothing can be served now."""
        return views.not_ready(self.fleet, self.nodes(), self._node_problems().values())

    def status(self) -> dict[str, Any]:
        """The coordinator at a glance."""
        now_s = self.now_s()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": now_s - self._started_s,
            "ready": self.not_ready() is None,
            "not_ready": self.not_ready(),
            "stages": len(self._host.calls),
            "stale_events": self._host.core.counters.stale,
            "store_lag_s": self._journal.lag_s,
            "store_error": str(self._journal.failing) if self._journal.failing else None,
            "node_problems": self._node_problems(),
            "nodes": [views.node_view(snapshot, now_s) for snapshot in self.nodes()],
        }

    def running(self) -> list[dict[str, Any]]:
        """Stages that are queued or in flight."""
        return self._host.ledger.running(self.now_s())

    async def submit_job(self, request: JobRequest) -> JobId:
        """Durable once this returns."""
        return await self._desk.submit(request)

    async def jobs(self, *, limit: int, status: str | None) -> list[dict[str, Any]]:
        """Newest first."""
        await self._journal.flush()
        wanted = JobStatus(status) if status else None
        rows = await asyncio.to_thread(self._store.jobs, limit, wanted)
        return [views.job_view(row) for row in rows]

    async def job(self, job_id: JobId) -> dict[str, Any] | None:
        """One job with its stages."""
        await self._journal.flush()
        row = await asyncio.to_thread(self._store.job, job_id)
        if row is None:
            return None
        steps = await asyncio.to_thread(self._store.step_results, job_id)
        attempts = await asyncio.to_thread(self._store.attempts, job_id)
        return views.job_detail(row, steps, attempts)

    async def cancel_job(self, job_id: JobId) -> bool:
        """False when it is unknown or over."""
        return self._desk.cancel(job_id)

    async def model_action(self, model: ModelName, action: ModelAction) -> ActionAnswer:
        """Carry the action out on every node that has the model."""
        links = [
            self._host.links[snapshot.node]
            for snapshot in self.nodes()
            if any(profile.model == model for profile in snapshot.profiles)
        ]
        if not links:
            reasons = [
                f"{snapshot.node}: {reason}"
                for snapshot in self.nodes()
                for unfit, reason in snapshot.never_fits
                if unfit == model
            ]
            return ActionAnswer("; ".join(reasons) or f"no connected node has model {model!r}")
        answers = await asyncio.gather(*(link.model_action(model, action) for link in links))
        return join_answers({link.node: a for link, a in zip(links, answers, strict=True)})

    async def decisions(self, subject: str, *, limit: int) -> list[dict[str, Any]]:
        """Records about a stage, an engine, or a job with all its stages; oldest first."""
        await self._journal.flush()
        is_job = await asyncio.to_thread(self._store.job, subject) is not None
        read = self._store.job_decisions if is_job else self._store.decisions
        rows = await asyncio.to_thread(read, subject, limit)
        return [views.decision_view(row) for row in rows]

    async def explain(self, job_id: str, stage: str | None) -> dict[str, Any]:
        """A job with every decision about it and its stages."""
        await self._journal.flush()
        return await asyncio.to_thread(explain_job, self._store, job_id, stage, self.running())

    def predictor_status(self) -> dict[str, Any]:
        """See docs/api.md."""
        return predictor_view(self._host.predictions, self._learned, self._refit)

    async def predictor_reset(
        self,
        workflow: str | None = None,
        role: str | None = None,
        model: str | None = None,
        *,
        refitted: bool = False,
    ) -> int:
        """Forget running figures, and the refitted model if asked; how many groups."""
        if refitted:
            await self._refit.drop_model()
        return self._host.predictions.state.reset(workflow, role, model)

    def events(self, job_id: JobId | None = None) -> AsyncIterator[dict[str, Any]]:
        """Live events of one job or of all."""
        return self._host.bus.watch(job_id)

    def _node_problems(self) -> dict[str, str]:
        return {name: link.problem for name, link in self._host.links.items() if link.problem}


def join_answers(by_node: Mapping[NodeName, ActionAnswer]) -> ActionAnswer:
    """One answer of several nodes; it has a note only where no node had anything to do."""
    where = {node: f" ({node})" if len(by_node) > 1 else "" for node in by_node}
    errors = [f"{answer.error}{where[node]}" for node, answer in by_node.items() if answer.error]
    notes = [f"{answer.note}{where[node]}" for node, answer in by_node.items() if answer.note]
    return ActionAnswer(
        "; ".join(errors) or None, ", ".join(notes) if len(notes) == len(by_node) else ""
    )
