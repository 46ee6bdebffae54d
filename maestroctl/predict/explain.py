"""Why a prediction came out as it did: quantiles, what moved them, what its like came to."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.stage import PromptTokens, StageDescriptor
from maestroctl.domain.stage_text import StageText, count_tokens
from maestroctl.predict.annotate import annotate
from maestroctl.predict.features import CATEGORY_NAMES
from maestroctl.predict.history import JobHistory
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.raw_prediction import local_expert
from maestroctl.predict.recalibration import OnlineState
from maestroctl.predict.running_figures import StageKey
from maestroctl.predict.stage_input import StageInput, build_stage_input
from maestroctl.predict.traces import UNKNOWN_MODEL

_LISTED = 8
_LOG = "_log"
_LOGS = ("tail_chars", "last_line_chars")
"""Columns of log(1 + x) whose names do not say so; people are shown x."""


def explain_stage(
    model: PredictorModel,
    stage: StageInput,
    state: OnlineState,
    local: PredictorModel | None = None,
) -> dict[str, Any]:
    """Everything ``maestroctl predict`` prints, as plain values.

    ``moved_by`` lists the columns that moved the median of the trained model most, as factors on
    (1 + tokens); they are no similar calls. Those are in ``history``: what the fleet has seen of
    the first candidate, nearest group first.

    Args:
        local: fitted on the fleet's own history; asked beside `model`, as `serve` does.
    """
    raw = model.predict([stage])[0]
    said = {"model": raw}
    if local is not None:
        said[local_expert(str(local.about.get("digest", "")))] = local.predict([stage])[0]
    annotation = annotate(stage, said, state)
    final = annotation.prediction
    limit = math.inf if stage.max_tokens is None else float(stage.max_tokens)
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
        "candidates": {
            name: {"q50": min(limit, told.q50), "q90": min(limit, told.q90)}
            for name, told in annotation.told.items()
        },
        "usual": math.expm1(float(parts[-1])),
        "moved_by": [
            {
                "feature": names[k].removesuffix(_LOG),
                "value": _shown(stage, names[k], float(full[0, k])),
                "factor": math.exp(float(parts[k])),
            }
            for k in strongest
        ],
        "history": [asdict(seen) for seen in state.seen(_nearest(stage))],
    }


def explain_prompt(
    model: PredictorModel,
    prompt: str,
    *,
    system: str = "",
    candidates: tuple[str, ...] = (),
    role: str = "assistant",
    workflow: str = "",
    step: str = "",
    tools: int = 0,
    max_tokens: int | None = None,
    state: OnlineState | None = None,
    local: PredictorModel | None = None,
) -> dict[str, Any]:
    """`explain_stage` of the first stage of a job, of which a person knows only this much.

    Args:
        candidates: models that could serve it; none = one that training did not name.
        state, local: what a fleet has learned; None = nothing.
    """
    text = StageText(system, prompt)
    names = candidates or (UNKNOWN_MODEL,)
    descriptor = StageDescriptor(
        stage_id=StageId("asked/0"),
        job_id=JobId("asked"),
        candidates=tuple(ModelName(name) for name in names),
        arrival_s=0.0,
        prompt_tokens=PromptTokens.of(text, full=count_tokens(system) + count_tokens(prompt)),
        workflow=workflow,
        role=role,
        step=step,
        tools_available=tools,
        max_tokens=max_tokens,
    )
    stage = build_stage_input(descriptor, text, JobHistory())
    return explain_stage(model, stage, state or OnlineState(), local)


def _nearest(stage: StageInput) -> StageKey:
    return StageKey(stage.workflow, stage.role, stage.step, stage.candidates[0])


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
        unseen = known and math.isnan(value)
        return (known or "none") + (" (never seen in training)" if unseen else "")
    if math.isnan(value):
        return None
    return math.expm1(value) if name.endswith(_LOG) or name in _LOGS else value
