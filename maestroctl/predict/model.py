"""The fitted predictors of one artifact, and the one call that evaluates them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from maestroctl.predict.embedding import FloatArray
from maestroctl.predict.features import RowBuilder, tool_is_certain
from maestroctl.predict.gbm import DoubleArray
from maestroctl.predict.output_length import LengthFigures, OutputLengthModel
from maestroctl.predict.raw_prediction import CandidateFigures, RawPrediction
from maestroctl.predict.remaining_length import RemainingLengthModel
from maestroctl.predict.semantic_router import SemanticRouter
from maestroctl.predict.stage_input import StageInput
from maestroctl.predict.tool_intent import ToolIntentModel


@dataclass(frozen=True, slots=True)
class PredictorModel:
    """Everything that was learned, ready to answer.

    Attributes:
        tool: None in the ablation ``no_tool_intent``; p_tool is then 0 or 1 where it is certain
            and 0.5 elsewhere, and the length heads see no more than that.
        router: None when no correctness table was trained on.
        about: plain facts for people: sources, rows, settings, and the tasks it was trained on.
    """

    builder: RowBuilder
    tool: ToolIntentModel | None
    length: OutputLengthModel
    total: RemainingLengthModel
    router: SemanticRouter | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def predict(self, stages: Sequence[StageInput]) -> list[RawPrediction]:
        """Raw figures of each stage under each of its candidates.

        A micro-batch shares one pass through each head. The result of a stage does not depend on
        what else is in the batch.
        """
        if not stages:
            return []
        blocks = [self.builder.rows(stage) for stage in stages]
        sizes = [len(block) for block in blocks]
        rows = np.concatenate(blocks)
        owners = [stage for stage, size in zip(stages, sizes, strict=True) for _ in range(size)]
        p_tool = self.p_tool(rows, owners)
        q50, q90 = self.length.predict_quantiles(rows, p_tool, [s.workflow for s in owners])
        total = self.total.predict(rows)
        out, start = [], 0
        for stage, size in zip(stages, sizes, strict=True):
            figures = {
                model: _figures(stage, q50[start + k], q90[start + k], total[start + k])
                for k, model in enumerate(stage.candidates)
            }
            chance = float(p_tool[start : start + size].mean())
            out.append(RawPrediction(chance, figures, self._confidence(stage)))
            start += size
        return out

    def _confidence(self, stage: StageInput) -> dict[str, float]:
        if self.router is None or len(stage.candidates) < 2:
            return {}
        # The router reads what the user asked: the prompt that opened the job.
        return self.router.confidence(stage.history.first_tail, stage.candidates)

    def p_tool(self, rows: FloatArray, stages: Sequence[StageInput]) -> DoubleArray:
        """Calibrated probability of a tool call per row."""
        certain = certain_tools(stages)
        if self.tool is None:
            return np.where(np.isnan(certain), 0.5, certain)
        return self.tool.predict(rows, certain)

    def length_figures(
        self, rows: FloatArray, stages: Sequence[StageInput]
    ) -> tuple[DoubleArray, LengthFigures]:
        """(p_tool, every length head) per row, for reports."""
        p_tool = self.p_tool(rows, stages)
        return p_tool, self.length.predict(rows, p_tool, [stage.workflow for stage in stages])


def certain_tools(stages: Sequence[StageInput]) -> DoubleArray:
    """0 or 1 where a tool call is known before, NaN where it is open."""
    answers = (tool_is_certain(stage) for stage in stages)
    return np.array([np.nan if answer is None else answer for answer in answers], dtype=np.float64)


def _figures(stage: StageInput, q50: float, q90: float, total: float) -> CandidateFigures:
    limit = float("inf") if stage.max_tokens is None else float(max(0, stage.max_tokens))
    low, high = min(float(q50), limit), min(float(q90), limit)
    return CandidateFigures(low, max(low, high), max(low, float(total)))
