"""StageInput and what the experts said to the final `Prediction`; and back, when a stage ended.

Both hosts make these two calls. What leaves here is final: no other part corrects a figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from maestroctl.domain.ids import ModelName
from maestroctl.domain.prediction import Prediction
from maestroctl.predict.online_regression import LengthTraits
from maestroctl.predict.raw_prediction import RawPrediction, of_local
from maestroctl.predict.recalibration import (
    Calibrated,
    Observation,
    OnlineState,
    StageKey,
    experts_for,
)
from maestroctl.predict.stage_input import StageInput

_ONE = 1.0
_FALLBACK_P_TOOL = 0.5


@dataclass(frozen=True, slots=True)
class Annotation:
    """A prediction and what is needed to learn from its outcome.

    Attributes:
        prediction: what the cores are told.
        said: raw figures by expert (``model``, ``local-DIGEST``); empty = the fallback answered.
        told: calibrated figures by candidate.
    """

    stage: StageInput
    prediction: Prediction
    said: Mapping[str, RawPrediction] = field(repr=False)
    told: Mapping[str, Calibrated] = field(repr=False)


def annotate(
    stage: StageInput, said: Mapping[str, RawPrediction], state: OnlineState
) -> Annotation:
    """Calibrate and collapse over the candidates.

    The stage's own figures must hold whichever candidate serves it: the median of the medians for
    order, the largest quantile for admission.

    Args:
        said: by expert; empty when no model answered in time.
    """
    traits = LengthTraits.of(stage)
    told = {
        model: state.calibrate(_key(stage, model), experts_for(model, said), traits)
        for model in stage.candidates
    }
    limit = float("inf") if stage.max_tokens is None else float(max(0, stage.max_tokens))
    medians = sorted(figures.q50 for figures in told.values())
    q50 = min(limit, medians[len(medians) // 2])
    q90 = max(q50, min(limit, max(figures.q90 for figures in told.values())))
    spoke = of_local(said) or said.get("model")
    prediction = Prediction(
        output_q50=q50,
        output_q90=q90,
        p_tool=_certain_p_tool(stage, _FALLBACK_P_TOOL if spoke is None else spoke.p_tool),
        # Where nothing is known of such jobs, orders have the rolling execution profile (Eq 8).
        total_tokens={
            ModelName(model): max(q50, figures.total)
            for model, figures in told.items()
            if figures.is_total_known
        },
        confidence=_confidence(said),
        rank_score=q50,
        source=_source(told),
    )
    return Annotation(stage, prediction, said, told)


def learn(annotation: Annotation, model: str, seen: Observation, state: OnlineState) -> None:
    """Teach the state what came out of a stage.

    Args:
        model: the candidate that served it.
    """
    told = annotation.told.get(model)
    if told is None:
        return
    state.observe(_key(annotation.stage, model), experts_for(model, annotation.said), told, seen)


def learn_total(
    annotation: Annotation, model: str, remaining_tokens: int, state: OnlineState
) -> None:
    """Teach the state what a stage's job still had to say, once the job ended."""
    told = annotation.told.get(model)
    if told is not None:
        experts = experts_for(model, annotation.said)
        state.observe_total(_key(annotation.stage, model), experts, told, remaining_tokens)


def count_miss(annotation: Annotation, model: str, state: OnlineState) -> None:
    """A running stage has passed its quantile; its `Observation` must say `miss_counted`."""
    state.count_miss(_key(annotation.stage, model))


def _key(stage: StageInput, model: str) -> StageKey:
    return StageKey(stage.workflow, stage.role, stage.step, model)


def _certain_p_tool(stage: StageInput, p_tool: float) -> float:
    if stage.tools_available <= 0 or stage.tool_choice == "none":
        return 0.0
    return p_tool if stage.tool_choice in ("auto", "") else _ONE


def _confidence(said: Mapping[str, RawPrediction]) -> dict[ModelName, float]:
    """What the router said; what to think of models it does not know is up to the choice."""
    raw = said.get("model")
    return {} if raw is None else {ModelName(m): q for m, q in raw.confidence.items()}


def _source(told: Mapping[str, Calibrated]) -> str:
    sources = {figures.source for figures in told.values()}
    for source in ("model", "profile"):
        if source in sources:
            return source
    return "prior"
