"""Trace jobs as parallel columns: what training and evaluation work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maestroctl.predict.gbm import BoolArray, DoubleArray
from maestroctl.predict.model import certain_tools
from maestroctl.predict.remaining_length import remaining_targets
from maestroctl.predict.stage_input import StageInput
from maestroctl.predict.traces import TraceJob, folds_of_tasks


@dataclass(frozen=True, slots=True)
class StageTable:
    """One entry per stage, in the order of the jobs.

    Attributes:
        tokens, tool, remaining: labels, NaN = not known.
        certain: 0 or 1 where a tool call is known before, NaN where it is open.
        job: number of the job in `jobs`.
    """

    jobs: tuple[TraceJob, ...]
    stages: tuple[StageInput, ...]
    tokens: DoubleArray
    tool: DoubleArray
    remaining: DoubleArray
    certain: DoubleArray
    job: npt.NDArray[np.int64]

    @property
    def workflows(self) -> list[str]:
        """Workflow of each stage."""
        return [stage.workflow for stage in self.stages]

    def folds(self, num_folds: int, *, seed: int = 0) -> npt.NDArray[np.int64]:
        """Fold of each stage's task."""
        of_job = folds_of_tasks([job.task for job in self.jobs], num_folds, seed=seed)
        return np.array(of_job, dtype=np.int64)[self.job]

    @property
    def admission(self) -> BoolArray:
        """The first stage of each job."""
        return np.array([stage.position == 0 for stage in self.stages])

    def with_tools(self) -> BoolArray:
        """Rows a tool-intent classifier is scored on."""
        return np.array([s.tools_available > 0 for s in self.stages]) & ~np.isnan(self.tool)


def make_table(jobs: Sequence[TraceJob]) -> StageTable:
    """Flatten jobs into columns."""
    flat = [(number, stage) for number, job in enumerate(jobs) for stage in job.stages]
    stages = tuple(stage.seen for _, stage in flat)
    return StageTable(
        jobs=tuple(jobs),
        stages=stages,
        tokens=_labels([stage.output_tokens for _, stage in flat]),
        tool=_labels([stage.tool_called for _, stage in flat]),
        remaining=remaining_targets(jobs),
        certain=certain_tools(stages),
        job=np.array([number for number, _ in flat], dtype=np.int64),
    )


def _labels(values: Sequence[int | bool | None]) -> DoubleArray:
    return np.array([np.nan if value is None else float(value) for value in values])
