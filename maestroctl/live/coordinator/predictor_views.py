"""``GET /api/predictor/status`` as plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from maestroctl.live.coordinator.prediction_desk import PredictionDesk, WrongGuess
from maestroctl.live.coordinator.predictor_service import LearnedModels

_LISTED = 20


def predictor_view(desk: PredictionDesk, models: LearnedModels) -> dict[str, Any]:
    """Artifact, process, running figures; what is not known is None."""
    facts, summary = models.facts, desk.state.summary()
    return {
        "artifact": {
            "path": None if facts is None else str(facts.path),
            "digest": None if facts is None else facts.digest,
            "trained_at": None if facts is None else facts.trained_at,
            "stages": None if facts is None else facts.stages,
            "apps": [] if facts is None else list(facts.apps),
        },
        "service": {
            "state": models.state,
            "reason": models.why_off,
            "pid": models.pid,
            "restarts": models.restarts,
            "predictions": desk.answered,
            "fallbacks": desk.fallbacks,
            "latency_ms": _latency(list(desk.latencies_s)),
        },
        "online": {
            "cells": summary.cells,
            "observations": summary.observations,
            "coverage_q90": summary.coverage_q90,
            "bias": summary.bias,
            "drift": _drift(desk),
            "biggest_errors": _biggest(desk.errors),
        },
        "refit": {"last_at": None, "last_result": None},
    }


def _latency(seconds: list[float]) -> dict[str, float | None]:
    if not seconds:
        return {"median": None, "p99": None}
    seconds.sort()
    last = len(seconds) - 1
    return {
        "median": round(1000 * seconds[last // 2], 3),
        "p99": round(1000 * seconds[math.floor(0.99 * last)], 3),
    }


def _drift(desk: PredictionDesk) -> list[dict[str, Any]]:
    """Recent over long-run error per (workflow, role), the worst first."""
    found: list[dict[str, Any]] = [
        {"workflow": label.rpartition("/")[0], "role": label.rpartition("/")[2], **figures}
        for label, figures in desk.state.drift().items()
    ]
    found.sort(key=lambda figures: -figures["error_ratio"])
    return found[:_LISTED]


def _biggest(errors: Iterable[WrongGuess]) -> list[dict[str, Any]]:
    """Of the last stages those whose length was furthest from the median, as a factor."""

    def distance(guess: WrongGuess) -> float:
        return abs(math.log1p(guess.output_tokens) - math.log1p(guess.predicted_q50))

    return [
        {
            "workflow": guess.workflow,
            "role": guess.role,
            "model": guess.model,
            "predicted_q50": guess.predicted_q50,
            "output_tokens": guess.output_tokens,
        }
        for guess in sorted(errors, key=distance, reverse=True)[:_LISTED]
    ]
