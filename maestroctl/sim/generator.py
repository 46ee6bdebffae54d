"""Jobs like the recorded ones, for users who have no traces: a fitted generator.

Per application: how many calls a job makes (quantiles), which role follows which (a Markov chain),
and per role how long answers and first prompts are and by how much a prompt grows from one call of
the role to the next (quantiles), how often it calls a tool. Lengths within a job go together: their
normal scores share a job's own score with the fitted correlation.

The parameters, ``generator.json``, were fitted by `sim.fit` to public traces under permissive
licences; docs/simulator.md lists them and how close the generator comes.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from statistics import NormalDist
from typing import Any

from maestroctl.sim.traces import TraceCall, TraceJob

_NORMAL = NormalDist()


@cache
def load_parameters() -> Mapping[str, Any]:
    """What ships with the package."""
    text = resources.files("maestroctl.sim").joinpath("generator.json").read_text("utf-8")
    parameters: Mapping[str, Any] = json.loads(text)
    return parameters


def app_weights(parameters: Mapping[str, Any]) -> dict[str, float]:
    """Applications, and how many of their jobs were recorded."""
    return {name: float(app["jobs"]) for name, app in parameters["apps"].items()}


def make_job(rng: random.Random, parameters: Mapping[str, Any], app: str) -> TraceJob:
    """One job of an application."""
    fitted = parameters["apps"][app]
    num_calls = max(1, round(pick(fitted["calls"], rng.random())))
    share = fitted["correlation"]
    job_score = rng.gauss(0.0, 1.0)
    prompts: dict[str, int] = {}
    calls = []
    role = _draw(rng, fitted["first"])
    for _ in range(num_calls):
        of_role = fitted["roles"][role]
        score = math.sqrt(share) * job_score + math.sqrt(1.0 - share) * rng.gauss(0.0, 1.0)
        output = max(1, round(pick(of_role["output"], _NORMAL.cdf(score))))
        key = "growth" if role in prompts else "prompt"
        more = pick(of_role[key], rng.random())
        prompts[role] = max(1, prompts.get(role, 0) + round(more))
        tools = of_role["tools"]
        called = tools > 0 and rng.random() < of_role["tool_rate"]
        calls.append(TraceCall(role, prompts[role], output, tools, called))
        role = _draw(rng, of_role["next"])
    return TraceJob("", app, "generator", tuple(calls))


def pick(quantiles: Sequence[float], part: float) -> float:
    """Value of a quantile function given at equal steps from 0 to 1."""
    place = part * (len(quantiles) - 1)
    low = min(int(place), len(quantiles) - 2) if len(quantiles) > 1 else 0
    high = min(low + 1, len(quantiles) - 1)
    return quantiles[low] + (place - low) * (quantiles[high] - quantiles[low])


def _draw(rng: random.Random, shares: Mapping[str, float]) -> str:
    return rng.choices(list(shares), list(shares.values()))[0]
