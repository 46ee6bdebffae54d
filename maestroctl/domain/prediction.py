"""What the predictors say of a stage. A value inside an event; a core never calls a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from maestroctl.domain.ids import ModelName


@dataclass(frozen=True, slots=True)
class Prediction:
    """Final figures, calibration included; `predict` owns every correction.

    Attributes:
        output_q50: median output tokens of this stage; order uses it.
        output_q90: 0.9 quantile of the same; admission books it.
        p_tool: calibrated probability that the stage calls a tool.
        total_tokens: output tokens of this and all later stages of the job, per candidate model.
        confidence: probability that the model answers well, per candidate model.
        rank_score: learned rank (policy ``ltr``); lower goes first.
        source: ``model``, ``profile`` (running quantiles), ``prior`` or ``oracle``.
    """

    output_q50: float
    output_q90: float
    p_tool: float = 0.0
    total_tokens: Mapping[ModelName, float] = field(default_factory=dict)
    confidence: Mapping[ModelName, float] = field(default_factory=dict)
    rank_score: float = 0.0
    source: str = "prior"

    def __post_init__(self) -> None:
        if not 0 <= self.output_q50 <= self.output_q90:
            raise ValueError(f"quantiles must rise from 0: {self.output_q50}, {self.output_q90}")


PRIOR = Prediction(output_q50=128.0, output_q90=512.0)
"""Used until something better is known."""
