"""Chimera's predictor: output tokens of this and all later stages of a job, per candidate model.

The target is Y = sum of OutTokens(job, j) for j >= i, learned as log(1 + Y); the median is the
priority. Two forms stand side by side:

======== ====================================================== ==================================
name     features                                               model
======== ====================================================== ==================================
chimera  the paper's: system / user / full token counts,        quantile regression forest,
         workflow, stage, model, TF-IDF + SVD sketch            evaluated from arrays
gbm      the whole row, the job's history included              LightGBM, absolute loss
======== ====================================================== ==================================

`gbm` ranks better at every stage but the first and is the default (``docs/prediction.md``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from maestroctl.predict.embedding import FloatArray
from maestroctl.predict.features import FeatureSchema
from maestroctl.predict.forest_arrays import ForestArrays, fit_forest
from maestroctl.predict.gbm import DoubleArray, Gbm, GbmParams, fit_gbm
from maestroctl.predict.traces import TraceJob

TOTAL = GbmParams("l1", rounds=250)
FORMS = ("gbm", "chimera")
_PAPER_COLUMNS = (
    "system_tokens_log",
    "user_tokens_log",
    "prompt_tokens_log",
    "workflow",
    "step",
    "role",
    "position",
    "model",
)
_MAX_LOG = math.log1p(10**8)


@dataclass(frozen=True, slots=True)
class RemainingLengthModel:
    """Both fitted forms.

    Attributes:
        forest: None where only the default form was fitted.
        forest_columns: columns of the row that the forest sees.
        form: the one decisions use.
    """

    gbm: Gbm
    forest: ForestArrays | None
    forest_columns: tuple[int, ...]
    form: str = "gbm"

    def predict(self, rows: FloatArray, form: str | None = None) -> DoubleArray:
        """Median remaining tokens per row, (num_rows,), at least 0."""
        if (form or self.form) == "gbm" or self.forest is None:
            logs = self.gbm.predict(rows)
        else:
            logs = self.forest.predict(rows[:, list(self.forest_columns)])
        return np.expm1(np.clip(logs, 0.0, _MAX_LOG))


def paper_columns(schema: FeatureSchema) -> tuple[int, ...]:
    """Columns of Chimera's feature list under this schema."""
    names = schema.names
    chosen = [names.index(name) for name in _PAPER_COLUMNS]
    sketch = [k for k, name in enumerate(names) if name.startswith(("tail_", "first_"))
              and name.rsplit("_", 1)[1].isdigit()]  # fmt: skip
    return (*chosen, *sketch)


def remaining_targets(jobs: Sequence[TraceJob], *, at_least: bool = False) -> DoubleArray:
    """Y of every stage, in order; NaN where a length from there on is not known.

    Args:
        at_least: count unknown lengths as 0 instead: a lower bound of Y, known everywhere.
    """
    unknown = 0.0 if at_least else math.nan
    out: list[float] = []
    for job in jobs:
        total, own = 0.0 if job.is_complete else math.nan, []
        for stage in reversed(job.stages):
            total += unknown if stage.output_tokens is None else stage.output_tokens
            own.append(total)
        out.extend(reversed(own))
    return np.array(out)


def fit_remaining_length(
    rows: FloatArray,
    remaining: DoubleArray,
    schema: FeatureSchema,
    *,
    params: GbmParams = TOTAL,
    with_forest: bool = True,
    num_threads: int = 2,
) -> RemainingLengthModel:
    """Fit both forms on the rows whose Y is known; there must be one."""
    known = ~np.isnan(remaining)
    target = np.log1p(remaining[known])
    columns = paper_columns(schema)
    gbm = fit_gbm(
        params, rows[known], target, categories=schema.category_columns, num_threads=num_threads
    )
    forest = None
    if with_forest:
        forest = fit_forest(rows[known][:, list(columns)], target, num_threads=num_threads)
    return RemainingLengthModel(gbm, forest, columns)
