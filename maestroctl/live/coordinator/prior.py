"""What is assumed of a stage until the learned predictors say better: a prior, and its limits."""

from __future__ import annotations

from dataclasses import replace

from maestroctl.domain.prediction import PRIOR, Prediction
from maestroctl.domain.stage import StageDescriptor, StageText


def predict_prior(stage: StageDescriptor, text: StageText) -> Prediction:
    """The prior, cut at what the request itself allows."""
    del text
    if stage.max_tokens is None or stage.max_tokens >= PRIOR.output_q90:
        return PRIOR
    limit = float(stage.max_tokens)
    return replace(PRIOR, output_q50=min(PRIOR.output_q50, limit), output_q90=limit)
