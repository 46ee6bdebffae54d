"""Stages, jobs and costs for tests of single orders."""

from __future__ import annotations

from collections.abc import Mapping

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.execution_profile import ExecutionProfile
from maestroctl.scheduler.ordering.costs import Costs
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.testing.coordinator_builders import make_snapshot


def make_job(name: str = "j", deadline_s: float | None = None, attained_s: float = 0.0) -> JobState:
    """A job that arrived at 0."""
    job = JobState(JobId(name), "flow", ServiceClass.BATCH, 0.0, deadline_s)
    job.attained_s = attained_s
    return job


def predict(
    tokens: float, q90: float | None = None, totals: Mapping[str, float] | None = None
) -> Prediction:
    """Of the stage, and of the job per model."""
    known = {ModelName(name): total for name, total in (totals or {}).items()}
    return Prediction(tokens, q90 or tokens, total_tokens=known)


def make_costs(profile: ExecutionProfile | None = None) -> Costs:
    """Model `m`: 0.042 s per output token, 0.04 s + 0.002 s per prompt token."""
    fleet = FleetState(1)
    fleet.apply(make_snapshot(), 0.0, 0.0)
    return Costs(fleet, profile)
