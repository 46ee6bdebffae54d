"""Why a prediction came out as it did: quantiles, the columns that moved it, and its profile."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from maestroctl.predict.annotate import annotate
from maestroctl.predict.features import CATEGORY_NAMES
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.recalibration import OnlineState
from maestroctl.predict.stage_input import StageInput

_LISTED = 8


def explain_stage(model: PredictorModel, stage: StageInput, state: OnlineState) -> dict[str, Any]:
    """Everything ``maestroctl predict`` prints, as plain values.

    ``moved_by`` lists the columns that moved the median most, as factors on (1 + tokens).
    """
    raw = model.predict([stage])[0]
    final = annotate(stage, {"model": raw}, state).prediction
    row = model.builder.row(stage)[None, :]
    p_tool = model.p_tool(row, [stage])
    full = np.concatenate([row, p_tool[:, None].astype(np.float32)], axis=1)
    parts = model.length.heads["q50"].contributions(full)[0]
    names = (*model.builder.schema.names, "p_tool")
    strongest = np.argsort(-np.abs(parts[:-1]))[:_LISTED]
    return {
        "raw": raw.to_json(),
        "final": {
            "q50": final.output_q50,
            "q90": final.output_q90,
            "p_tool": final.p_tool,
            "total_tokens": dict(final.total_tokens),
            "confidence": dict(final.confidence),
            "source": final.source,
        },
        "usual": math.expm1(float(parts[-1])),
        "moved_by": [
            {
                "feature": names[k],
                "value": _shown(stage, names[k], float(full[0, k])),
                "factor": math.exp(float(parts[k])),
            }
            for k in strongest
        ],
    }


def _shown(stage: StageInput, name: str, value: float) -> float | str | None:
    if name in CATEGORY_NAMES:
        known = {
            "workflow": stage.workflow,
            "role": stage.role,
            "model": stage.candidates[0],
            "step": stage.step,
            "reasoning": stage.reasoning,
            "prev_role": stage.history.prev_role,
            "prev_step": stage.history.prev_step,
            "response_format": stage.response_format,
        }[name]
        return known + (" (never seen in training)" if math.isnan(value) else "")
    return None if math.isnan(value) else value
