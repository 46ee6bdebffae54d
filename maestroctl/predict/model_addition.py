"""One more model in the confidence router of an artifact, from that model's outcomes alone.

``maestroctl predictor add-model NAME --outcomes FILE --out FILE``

Encoder, difficulty and the heads of all other models stay as they are, to the bit. The new head is
judged on questions that it was not fitted on: each fold is asked of a head fitted on the others.
The head that is written is fitted on all of them. (The difficulty may have seen a question with
other models' answers; it has never seen an answer of this model.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maestroctl.errors import ConfigError
from maestroctl.predict import metrics
from maestroctl.predict.artifact import save_artifact
from maestroctl.predict.embedding import FloatArray
from maestroctl.predict.gbm import DoubleArray
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.routing_tables import RoutingRow, fold_of_item, load_outcomes
from maestroctl.predict.semantic_router import MIN_OUTCOMES, fit_head

_NUM_FOLDS = 5


def run_addition(
    base: PredictorModel, model: str, outcomes: Path, out: Path, *, again: bool = False
) -> dict[str, Any]:
    """Add a model and save the artifact; returns what was done.

    Args:
        base: a loaded artifact; it is not changed.
        outcomes: file of the model's answers, see `load_outcomes`.
        again: the model may have a head already, which is then fitted anew.

    Raises:
        ConfigError: the artifact has no router or knows the model, or the file says too little.
    """
    if base.router is None:
        raise ConfigError(
            "this artifact has no confidence router to add a model to",
            hint="train one with `maestroctl train --routing`",
        )
    if model in base.router.heads and not again:
        raise ConfigError(
            f"this artifact knows {model!r} already", hint="--again fits its head anew"
        )
    rows = load_outcomes(outcomes, model)
    distinct = len({row.item_key for row in rows})
    if distinct < MIN_OUTCOMES:
        raise ConfigError(
            f"outcomes of {distinct} questions are too few to learn from or to judge by",
            file=str(outcomes),
            hint=f"at least {MIN_OUTCOMES} different ones are needed",
        )
    added, held_out = add_model(base, model, rows)
    digest = save_artifact(added, out)
    return {
        "path": str(out),
        "digest": digest,
        "bytes": out.stat().st_size,
        "model": model,
        "outcomes": len(rows),
        "questions": distinct,
        "held_out": held_out,
    }


def add_model(
    base: PredictorModel, model: str, rows: Sequence[RoutingRow]
) -> tuple[PredictorModel, dict[str, Any]]:
    """The predictors with a head for the model, and how good it is on questions held out.

    Args:
        base: with a router.
        rows: answers of this model.
    """
    router = base.router
    assert router is not None
    vectors = np.stack([router.vector(row.question) for row in rows])
    correct = np.array([row.correct for row in rows])
    folds = np.array([fold_of_item(row, _NUM_FOLDS) for row in rows])
    head = fit_head(vectors, correct, folds, router.ease_slope)
    about = {name: fact for name, fact in base.about.items() if name != "digest"}
    about["added_to"] = base.about.get("digest")
    about["added_models"] = {
        **about.get("added_models", {}),
        model: {"outcomes": len(rows), "at": datetime.now(UTC).isoformat(timespec="seconds")},
    }
    added = replace(base, router=router.with_head(model, head), about=about)
    return added, judge_held_out(vectors, correct, folds, router.ease_slope)


def judge_held_out(
    vectors: FloatArray, correct: DoubleArray, folds: npt.NDArray[np.int64], ease_slope: float
) -> dict[str, Any]:
    """Each fold asked of a head, and of a base rate, that the other folds gave.

    Returns:
        ``rate`` of correct answers; ``auc``, ``brier`` and ``log_loss`` of the heads;
        ``brier_base_rate`` and ``log_loss_base_rate``; ``rows`` judged.
    """
    said, base = np.empty(len(correct)), np.empty(len(correct))
    for fold in np.unique(folds):
        outside = folds == fold
        inside = ~outside
        head = fit_head(vectors[inside], correct[inside], folds[inside], ease_slope)
        said[outside] = 1 / (1 + np.exp(-(vectors[outside] @ head.weights + head.bias)))
        base[outside] = correct[inside].mean()
    ours, theirs = metrics.tool_metrics(correct, said), metrics.tool_metrics(correct, base)
    return {
        "rate": float(correct.mean()),
        "auc": metrics.area_under_curve(correct, said),
        "brier": ours["brier"],
        "brier_base_rate": theirs["brier"],
        "log_loss": ours["log_loss"],
        "log_loss_base_rate": theirs["log_loss"],
        "rows": len(correct),
    }
