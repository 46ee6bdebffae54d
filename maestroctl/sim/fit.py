"""Fits the generator's parameters to a data folder: ``python -m maestroctl.sim.fit DATA OUT``.

Sources whose licence does not allow training something that ships are left out by name.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from maestroctl.sim.traces import TraceCall, TraceJob, load_jobs

EXCLUDED_SOURCES = ("mast_chatdev",)
"""Possibly non-commercial: never part of anything that ships."""
_STEPS = 100
_LEAST_JOBS = 10


def fit_generator(jobs: Sequence[TraceJob]) -> dict[str, Any]:
    """Parameters of `sim.generator`, ready for JSON."""
    by_app: dict[str, list[TraceJob]] = defaultdict(list)
    for job in jobs:
        by_app[job.app].append(job)
    apps = {
        app: _fit_app(of_app)
        for app, of_app in sorted(by_app.items())
        if len(of_app) >= _LEAST_JOBS
    }
    return {"format": 1, "sources": sorted({job.source for job in jobs}), "apps": apps}


def _fit_app(jobs: Sequence[TraceJob]) -> dict[str, Any]:
    by_role: dict[str, list[TraceCall]] = defaultdict(list)
    first: Counter[str] = Counter()
    following: dict[str, Counter[str]] = defaultdict(Counter)
    prompts: dict[str, list[int]] = defaultdict(list)
    growth: dict[str, list[int]] = defaultdict(list)
    for job in jobs:
        first[job.calls[0].role] += 1
        last: dict[str, int] = {}
        for number, call in enumerate(job.calls):
            by_role[call.role].append(call)
            if number:
                following[job.calls[number - 1].role][call.role] += 1
            if call.role in last:
                growth[call.role].append(call.prompt_tokens - last[call.role])
            else:
                prompts[call.role].append(call.prompt_tokens)
            last[call.role] = call.prompt_tokens
    return {
        "jobs": len(jobs),
        "calls": quantiles([len(job.calls) for job in jobs]),
        "correlation": round(_correlation(jobs, by_role), 3),
        "first": _shares(first),
        "roles": {
            role: {
                "next": _shares(following[role] or Counter({role: 1})),
                "output": quantiles([call.output_tokens for call in calls]),
                "prompt": quantiles(prompts[role]),
                "growth": quantiles(growth[role] or [0]),
                "tools": max(call.tools_available for call in calls),
                "tool_rate": round(fmean(call.tool_called for call in calls), 3),
            }
            for role, calls in sorted(by_role.items())
        },
    }


def _correlation(jobs: Sequence[TraceJob], by_role: dict[str, list[TraceCall]]) -> float:
    """Mean product of normal scores of two calls of one job, 0 to 0.95."""
    normal = NormalDist()
    score: dict[str, dict[int, float]] = {}
    for role, calls in by_role.items():
        count = Counter(call.output_tokens for call in calls)
        score[role], below = {}, 0
        for tokens, number in sorted(count.items()):
            score[role][tokens] = normal.inv_cdf((below + number / 2) / len(calls))
            below += number
    products = 0.0
    pairs = 0
    for job in jobs:
        scores = [score[call.role][call.output_tokens] for call in job.calls]
        products += (sum(scores) ** 2 - sum(s * s for s in scores)) / 2
        pairs += len(scores) * (len(scores) - 1) // 2
    return min(0.95, max(0.0, products / pairs)) if pairs else 0.0


def quantiles(values: Iterable[float]) -> list[float]:
    """The quantile function at equal steps from 0 to 1."""
    ordered = sorted(values)
    return [ordered[round(step / _STEPS * (len(ordered) - 1))] for step in range(_STEPS + 1)]


def _shares(counts: Counter[str]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: round(count / total, 4) for name, count in sorted(counts.items())}


def main() -> None:
    """Fit and write."""
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    parameters = fit_generator(load_jobs(data, without=EXCLUDED_SOURCES))
    out.write_text(json.dumps(parameters, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
