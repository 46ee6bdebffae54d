"""Learned estimators: output length of a stage, what its job still has to say, who can answer.

The path of one prediction::

    StageDescriptor + StageText + JobHistory
        -> StageInput          stage_input.py   what a predictor may see, small enough to send
        -> row                 features.py      the same code for training and serving
        -> raw figures         model.py         p_tool, quantiles of L, Y per candidate, confidence
        -> Prediction          annotate.py      blended, calibrated, final

`history`, `stage_input`, `recalibration` and what it is made of, `client` and `annotate` need the
standard library alone, so a gateway without the ``predict`` extra still serves on what it learns
from its own stages.
"""
