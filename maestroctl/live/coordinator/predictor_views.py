"""``GET /api/predictor/status`` as plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from maestroctl.live.coordinator.background_refit import BackgroundRefit
from maestroctl.live.coordinator.prediction_desk import PredictionDesk, WrongGuess
from maestroctl.live.coordinator.predictor_service import LearnedModels
from maestroctl.predict.artifact_facts import ArtifactFacts

_LISTED = 20


def predictor_view(
    desk: PredictionDesk, models: LearnedModels, refit: BackgroundRefit
) -> dict[str, Any]:
    """Artifact, process, running figures, last refit; what is not known is None."""
    summary = desk.state.summary()
    return {
        "artifact": _artifact(models.facts or ArtifactFacts(None)),
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
        "refit": _refit(refit, models.local_facts),
    }


def _artifact(facts: ArtifactFacts) -> dict[str, Any]:
    return {
        "path": None if facts.path is None else str(facts.path),
        "digest": facts.digest,
        "trained_at": facts.trained_at,
        "stages": facts.stages,
        "apps": list(facts.apps),
    }


def _refit(refit: BackgroundRefit, local: ArtifactFacts | None) -> dict[str, Any]:
    """The last refit on own history, what it was judged by, and the model of one that is asked."""
    last = refit.record
    began = None if last is None else datetime.fromtimestamp(last.at, UTC)
    return {
        "after_stages": refit.after_stages,
        "new_stages": refit.new_stages,
        "running": refit.is_running,
        "last_at": None if began is None else began.isoformat(timespec="seconds"),
        "last_result": None if last is None else last.result.value,
        "reason": "" if last is None else last.reason,
        "seconds": None if last is None else round(last.seconds, 1),
        "jobs": None if last is None else last.jobs,
        "stages": None if last is None else last.stages,
        "judged_stages": None if last is None else last.judged,
        "mae_told": None if last is None else last.mae_told,
        "mae_refitted": None if last is None else last.mae_refitted,
        "model": None if local is None else _artifact(local),
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
