"""Questions with every model's recorded answer, and what a router said without having seen it.

Confidences are out of fold: the router that speaks of a question was fitted on the questions of
the other folds alone, the encoder included, so no model choice is made with knowledge of the
outcome. The router is `semantic_router`, whose pooled difficulty beats a TF-IDF logistic regression
per model on these tables (area under the ROC curve 0.65-0.72 against 0.58-0.70).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from maestroctl.errors import ArtifactMissing, ConfigError
from maestroctl.predict.answered_query import AnsweredQuery
from maestroctl.predict.routing_tables import RoutingRow, fold_of_item, load_routing_rows

NUM_FOLDS = 5
CHARS_PER_TOKEN = 4


def load_answered(folder: Path, dataset: str, models: Collection[str]) -> list[AnsweredQuery]:
    """Questions of a correctness table that all of `models` answered.

    Raises:
        ConfigError: the table or a model is not there.
        ArtifactMissing: pyarrow or scikit-learn is not installed.
    """
    rows = [row for row in load_routing_rows(folder) if row.dataset == dataset]
    missing = sorted(set(models) - {row.model for row in rows})
    if missing:
        raise ConfigError(f"no answers of {', '.join(missing)} in {dataset!r}", file=str(folder))
    said = out_of_fold_confidences(rows, models)
    answers: dict[str, dict[str, RoutingRow]] = {}
    for row in rows:
        if row.model in models and row.output_tokens is not None:
            answers.setdefault(row.item_key, {})[row.model] = row
    return [
        AnsweredQuery(
            max(1, len(next(iter(by_model.values())).question) // CHARS_PER_TOKEN),
            {model: row.correct for model, row in by_model.items()},
            {model: max(1, row.output_tokens or 1) for model, row in by_model.items()},
            {model: said[key, model] for model in by_model},
        )
        for key, by_model in answers.items()
        if len(by_model) == len(set(models))
    ]


def out_of_fold_confidences(
    rows: Sequence[RoutingRow], models: Collection[str]
) -> dict[tuple[str, str], float]:
    """(question, model) -> confidence of a router fitted on the other folds, of every model's rows.

    Raises:
        ArtifactMissing: scikit-learn is not installed.
    """
    try:
        from maestroctl.predict.train import fit_router_on
    except ImportError as exc:
        raise ArtifactMissing(
            "fitting a router needs scikit-learn", hint="pip install 'maestroctl[predict]'"
        ) from exc
    said: dict[tuple[str, str], float] = {}
    for fold in range(NUM_FOLDS):
        router = fit_router_on([row for row in rows if fold_of_item(row, NUM_FOLDS) != fold])
        outside = {
            row.item_key: row.question for row in rows if fold_of_item(row, NUM_FOLDS) == fold
        }
        for key, question in outside.items():
            for model, confidence in router.confidence(question, models).items():
                said[key, model] = confidence
    return said
