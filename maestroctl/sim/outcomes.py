"""Questions and every model's answer, for users who have no correctness tables: a generator.

Per table one factor model. A question has a difficulty g, standard normal; a model answers right
when its own score, sqrt(r) g + sqrt(1 - r) noise, is below the quantile of its accuracy, so models
fail together as often as recorded. Lengths and router confidences are the recorded quantiles of the
model at normal scores that go with g and with each other as fitted: hard questions get long answers
and low confidences, and the router is as good as the recorded one, no better.

The parameters, ``outcomes.json``, come from `sim.outcomes_fit` and tables under permissive
licences; docs/experiments.md says how close the generator comes.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from functools import cache
from importlib import resources
from statistics import NormalDist
from typing import Any

from maestroctl.errors import ConfigError
from maestroctl.predict.answered_query import AnsweredQuery
from maestroctl.sim.generator import pick

_NORMAL = NormalDist()
_EDGE = 1e-6


@cache
def load_parameters() -> Mapping[str, Any]:
    """What ships with the package."""
    text = resources.files("maestroctl.sim").joinpath("outcomes.json").read_text("utf-8")
    parameters: Mapping[str, Any] = json.loads(text)
    return parameters


def make_answered(dataset: str, number: int, seed: int = 0) -> list[AnsweredQuery]:
    """Questions like those of a correctness table, answered by every model that was fitted.

    Raises:
        ConfigError: no such table was fitted.
    """
    tables = load_parameters()["tables"]
    if dataset not in tables:
        raise ConfigError(f"no table is called {dataset!r}; there are: {', '.join(sorted(tables))}")
    return [
        make_query(tables[dataset], random.Random(f"{dataset}/{seed}/{index}"))
        for index in range(number)
    ]


def make_query(fitted: Mapping[str, Any], rng: random.Random) -> AnsweredQuery:
    """One question of a fitted table."""
    g, length, said = (rng.gauss(0.0, 1.0) for _ in range(3))
    correct: dict[str, float] = {}
    tokens: dict[str, int] = {}
    confidence: dict[str, float] = {}
    for name, model in fitted["models"].items():
        own = [rng.gauss(0.0, 1.0) for _ in range(3)]
        right = _mix(fitted["outcome_share"], g, own[0])
        bar = _NORMAL.inv_cdf(min(max(model["accuracy"], _EDGE), 1.0 - _EDGE))
        correct[name] = float(right < bar)
        rest = _mix(fitted["length_share"], length, own[1])
        score = _blend(fitted["length_difficulty"], g, rest)
        tokens[name] = max(1, round(pick(model["output_tokens"], _NORMAL.cdf(score))))
        rest = _mix(fitted["confidence_share"], said, own[2])
        score = _blend(fitted["confidence_difficulty"], g, rest)
        confidence[name] = pick(model["confidence"], 1.0 - _NORMAL.cdf(score))
    question = max(1, round(pick(fitted["question_tokens"], rng.random())))
    return AnsweredQuery(question, correct, tokens, confidence)


def _mix(share: float, common: float, own: float) -> float:
    """Scores of which any two share this part of their variance."""
    return math.sqrt(share) * common + math.sqrt(1.0 - share) * own


def _blend(correlation: float, common: float, own: float) -> float:
    """A score that correlates with `common` like this."""
    return correlation * common + math.sqrt(1.0 - correlation * correlation) * own
