"""Refits the predictors on this fleet's own history while the coordinator runs.

Theory of operation
-------------------
Once `[predictor] refit_after_stages` stages were observed since the last refit, a child process
(`own_refit`, at a low priority) does what `maestroctl train --from-history` does: it reads
the state database, fits on the older jobs, and judges on the newest against what was told when
they ran. Only a better model is written, beside its place and moved there; the predictor process
is then told to ask it beside the trained one, and what was learned about the one before is
dropped. Requests see nothing of it.

The record of the last refit is durable before the child begins and when it has ended, so a
coordinator that is killed in the middle counts that as a failure and rests (`refit_rule`); the
child ends with its coordinator. A model that was moved to its place but not announced yet is
found by the next start. One refit runs at a time; a reset ends it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from maestroctl.errors import MaestroError, PredictorError, StoreError
from maestroctl.live.coordinator.prediction_desk import PredictionDesk
from maestroctl.live.coordinator.predictor_service import LearnedModels
from maestroctl.live.coordinator.refit_rule import RefitOutcome, RefitRecord, is_due
from maestroctl.predict.artifact_facts import sweep_partials
from maestroctl.store.database import Store
from maestroctl.store.journal import Journal
from maestroctl.store.rows import MetaRow

_CHECK_EVERY_S = 1.0
_LIMIT_S = 3600.0
"""A refit that takes longer hangs, or the machine has no time for it."""
_META = "refit"
_MAX_REASON = 300


class BackgroundRefit:
    """One owner: the coordinator.

    Args:
        after_stages: new stages until the next refit; 0 = never.
        state_url: of the database that the history is in.
        notify: told in one line what a person should know.

    Attributes:
        record: of the last refit; None = there was none.
    """

    def __init__(
        self,
        after_stages: int,
        state_url: str,
        desk: PredictionDesk,
        models: LearnedModels,
        journal: Journal,
        notify: Callable[[str], None],
    ) -> None:
        self.after_stages = after_stages
        self.record: RefitRecord | None = None
        self._state_url = state_url
        self._desk = desk
        self._models = models
        self._journal = journal
        self._notify = notify
        self._counted_before = 0
        """Observations that count from earlier runs of the coordinator."""
        self._counted_from = 0
        """Of `desk.learned`: what does not count any more."""
        self._watching: asyncio.Task[None] | None = None
        self._refit: asyncio.Task[None] | None = None

    @property
    def new_stages(self) -> int:
        """Observed since the last refit that did not fail."""
        return self._counted_before + self._desk.learned - self._counted_from

    @property
    def is_running(self) -> bool:
        """A refit is under way."""
        return self._refit is not None and not self._refit.done()

    def start(self, store: Store) -> None:
        """Take up where the last coordinator stopped."""
        self.record = _read_record(store)
        since = 0.0 if self.record is None else self.record.since
        self._counted_before = store.count_observations(since)
        sweep_partials(self._models.local)
        if self.after_stages and self._models.client is not None:
            self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End the watch, and a refit with its child."""
        await _end(self._watching)
        await _end(self._refit)

    async def drop_model(self) -> None:
        """Forget the refitted model; the next one comes after as many stages as ever."""
        await _end(self._refit)
        self._models.local.unlink(missing_ok=True)
        now = time.time()
        self._count_anew(self._desk.learned)
        self._note(RefitRecord(now, RefitOutcome.DROPPED, since=now))
        await self._swap()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            ready = self._models.state == "running" and not self.is_running
            if ready and is_due(self.after_stages, self.new_stages, self.record, time.time()):
                self._refit = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """One refit, from its record to its record."""
        last, learned, began = self.record, self._desk.learned, time.time()
        record = RefitRecord(
            at=began,
            result=RefitOutcome.RUNNING,
            since=0.0 if last is None else last.since,
            failures=0 if last is None else last.failures,
        )
        try:
            self._note(record)
            await self._journal.flush()
            report = await _fit(self._state_url, self._models.local)
            if report["better"]:
                await self._swap()
        except asyncio.CancelledError:
            self._note(replace(record, result=RefitOutcome.CALLED_OFF))
            raise
        except (MaestroError, OSError, ValueError, KeyError, TypeError) as exc:
            record = record.failed(str(exc)[:_MAX_REASON], time.time() - began)
            self._notify(f"The predictors could not be fitted on own history: {record.reason}")
        else:
            record = _record_of(record, report, time.time() - began)
            self._count_anew(learned)
        self._note(record)

    async def _swap(self) -> None:
        """Ask the model that lies there now; what was learned about another is not about it."""
        await self._models.swap_local()
        self._desk.state.keep_experts(self._models.experts)

    def _count_anew(self, learned: int) -> None:
        self._counted_before, self._counted_from = 0, learned

    def _note(self, record: RefitRecord) -> None:
        self.record = record
        self._journal.write([MetaRow(_META, json.dumps(record.to_json()))])


def _read_record(store: Store) -> RefitRecord | None:
    text = store.meta(_META)
    try:
        record = None if text is None else RefitRecord.from_json(json.loads(text))
    except (ValueError, TypeError, KeyError):  # another version's: begin anew
        return None
    # A clock that was set back must not hold up the next refit until it has caught up.
    return record and replace(record, at=min(record.at, time.time()))


def _record_of(began: RefitRecord, report: dict[str, Any], seconds: float) -> RefitRecord:
    """The record of a refit that came to an end."""
    if report["better"]:
        result = RefitOutcome.SWAPPED_IN
    else:
        result = RefitOutcome.NO_BETTER if report["judged"] else RefitOutcome.TOO_FEW
    figures = {name: report[name] for name in ("jobs", "stages", "judged")}
    errors = {name: report[name] for name in ("mae_told", "mae_refitted")}
    return replace(
        began, result=result, since=began.at, failures=0, seconds=seconds, **figures, **errors
    )


async def _fit(state_url: str, out: Path) -> dict[str, Any]:
    """Run the child to its end; its report. It does not outlive the call, however that ends.

    Raises:
        PredictorError: the child failed, or took too long.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "maestroctl.live.coordinator.own_refit"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        # By its input: a database URL may hold a password, which a command line would show.
        process.stdin.write(json.dumps({"state": state_url, "out": str(out)}).encode() + b"\n")
        async with asyncio.timeout(_LIMIT_S):
            said, complaint, status = await asyncio.gather(
                process.stdout.read(), process.stderr.read(), process.wait()
            )
    except TimeoutError:
        raise PredictorError(f"took longer than {_LIMIT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        sweep_partials(out)
    if status != 0:
        raise PredictorError(_last_line(complaint) or f"it ended with status {status}")
    report: dict[str, Any] = json.loads(_last_line(said))
    return report


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, StoreError):
            await task
