"""Latency of one prediction through the predictor process, IPC included.

Jobs are drawn from the whole folder and each replayed in order, one stage at a time, each with
three candidate models. Asking, answering and the calibration by running figures (`annotate`) are
timed together, both processes on one core where the system can pin them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from maestroctl.errors import PredictorError
from maestroctl.predict.annotate import annotate, learn
from maestroctl.predict.artifact import save_artifact
from maestroctl.predict.client import PredictorClient
from maestroctl.predict.metrics import quantile_of
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.recalibration import Observation, OnlineState
from maestroctl.predict.service_process import ServiceProcess
from maestroctl.predict.stage_input import StageInput
from maestroctl.predict.traces import TraceJob

NUM_CANDIDATES = 3
_WARM_UP = 20
_PATIENCE_S = 60.0
_START_S = 180.0


def measure_latency(
    model: PredictorModel, jobs: Sequence[TraceJob], num_stages: int
) -> dict[str, float]:
    """Milliseconds per stage: median, 99th percentile, and how many were measured.

    Raises:
        PredictorError: the predictor process did not start or did not answer.
    """
    stages = _stages_to_ask(model, jobs, num_stages + _WARM_UP)
    with tempfile.TemporaryDirectory(prefix="maestroctl-latency-") as folder:
        artifact = Path(folder) / "model.mpred"
        save_artifact(model, artifact)
        with _one_core():
            times_ms = asyncio.run(_time_all(artifact, Path(folder) / "s", stages))
    timed = times_ms[_WARM_UP:] or times_ms
    return {
        "median": quantile_of(timed, 0.5),
        "p99": quantile_of(timed, 0.99),
        "stages": float(len(timed)),
    }


def _stages_to_ask(
    model: PredictorModel, jobs: Sequence[TraceJob], wanted: int
) -> list[tuple[StageInput, int | None]]:
    """Stages, and their lengths, of jobs drawn with a fixed seed; in order within a job."""
    names = sorted(model.builder.schema.vocabulary["model"]) or ["a"]
    names = (names * NUM_CANDIDATES)[: max(NUM_CANDIDATES, len(names))]
    stages: list[tuple[StageInput, int | None]] = []
    for job in random.Random(0).sample(list(jobs), len(jobs)):
        for stage in job.stages:
            own = stage.seen.candidates[0]
            others = [name for name in names if name != own]
            candidates = tuple([own, *others, own + "-b", own + "-c"][:NUM_CANDIDATES])
            stages.append((replace(stage.seen, candidates=candidates), stage.output_tokens))
            if len(stages) == wanted:
                return stages
    return stages


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Pin this process, and what it starts, to one of its cores; where it cannot, do nothing."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    try:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {max(allowed)})
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, allowed)


async def _time_all(
    artifact: Path, socket: Path, stages: Sequence[tuple[StageInput, int | None]]
) -> list[float]:
    process, state = ServiceProcess(socket, artifact), OnlineState()
    client = PredictorClient(socket, budget_s=_PATIENCE_S)
    times_ms = []
    await process.start()
    try:
        if not await process.wait_listening(_START_S):
            raise PredictorError("the predictor process did not start")
        for stage, length in stages:
            began = time.perf_counter()
            said = await client.predict(stage)
            annotation = annotate(stage, said, state)
            times_ms.append((time.perf_counter() - began) * 1e3)
            if length is not None:
                learn(annotation, stage.candidates[0], Observation(length), state)
            if not said:
                raise PredictorError("the predictor process did not answer")
    finally:
        await client.close()
        await process.stop()
    return times_ms
