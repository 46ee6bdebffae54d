"""How wrong the predictors are, as a small table that the simulator can play.

``python -m maestroctl.predict.residuals --stages DIR [--without SOURCE] OUT.json``

What is fitted. Predictions are cross-validated (no task predicts itself). Their error is not noise
on top of the truth: a predictor that knows little of a job says the usual length of its kind, so
its error falls as the truth rises. The table therefore holds, of what is said (y) given what is
true (x), both in logs,

    y = c + b x + s e

with b near 1 where the predictor sees the length coming and near 0 where it says the usual one.
Length: one line per application and role. Remaining tokens of the job: one line per application
and position in the job, and how far e of a stage goes with e of the job's stage before it (`lag`).
The distribution of e is kept as quantiles. Groups with few stages take the line of their parent.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maestroctl.predict.evaluate import Told, cross_validate
from maestroctl.predict.gbm import BoolArray, DoubleArray
from maestroctl.predict.stage_table import StageTable
from maestroctl.predict.traces import load_trace_jobs
from maestroctl.predict.train import TrainConfig

POSITIONS = (0, 1, 3, 8)
"""First position of each group of positions in a job."""
LEAST = 40
"""Stages below which a group takes its parent's line."""
LEVELS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
"""Where the quantiles of e are kept."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Truth and what was said, one entry per stage, NaN where it is not known.

    Attributes:
        job: number of the job of each stage; stages of a job follow one another.
    """

    app: Sequence[str]
    role: Sequence[str]
    job: Sequence[int]
    tokens: DoubleArray
    remaining: DoubleArray
    q50: DoubleArray
    q90: DoubleArray
    total: DoubleArray


def gather(table: StageTable, told: Told) -> Errors:
    """The columns of one cross-validation."""
    return Errors(
        app=[table.jobs[number].app for number in table.job],
        role=[stage.role for stage in table.stages],
        job=[int(number) for number in table.job],
        tokens=table.tokens,
        remaining=table.remaining,
        q50=told.q50,
        q90=told.q90,
        total=told.total,
    )


def fit_errors(errors: Errors) -> dict[str, Any]:
    """The table, ready for JSON."""
    apps = np.array(errors.app)
    names = sorted(set(errors.app))
    lengths, length_shape = _fit_lengths(errors, apps, names)
    remaining, remaining_shape = _fit_remaining(errors, apps, names)
    return {
        "format": 1,
        "levels": list(LEVELS),
        "positions": list(POSITIONS),
        "length": lengths,
        "length_shape": length_shape,
        "remaining": remaining,
        "remaining_shape": remaining_shape,
    }


def _fit_lengths(
    errors: Errors, apps: Any, names: Sequence[str]
) -> tuple[dict[str, list[float]], list[float]]:
    said, true = _logs(errors.q50), _logs(errors.tokens)
    wide = _logs(errors.q90) - said
    known = ~np.isnan(said) & ~np.isnan(true)
    roles = np.array(errors.role)
    spread = np.full(len(said), np.nan)
    lines: dict[str, list[float]] = {}
    groups: list[tuple[str, BoolArray]] = [("", known)]
    groups += [(app, known & (apps == app)) for app in names]
    for app in names:
        of_app = known & (apps == app)
        groups += [(f"{app}/{r}", of_app & (roles == r)) for r in sorted(set(roles[of_app]))]
    for name, rows in groups:
        if np.count_nonzero(rows) < LEAST:
            continue
        line = _line(true[rows], said[rows])
        spread[rows] = _spread(line, true[rows], said[rows])
        lines[name] = [*line, round(float(np.mean(wide[rows])), 4)]
    return lines, _shape(spread[known])


def _fit_remaining(
    errors: Errors, apps: Any, names: Sequence[str]
) -> tuple[dict[str, Any], list[float]]:
    said, true = _logs(errors.total), _logs(errors.remaining)
    known = ~np.isnan(said) & ~np.isnan(true)
    jobs = np.array(errors.job)
    groups = np.searchsorted(POSITIONS, _positions(jobs), side="right") - 1
    spread = np.full(len(said), np.nan)
    table: dict[str, Any] = {}
    pooled: list[list[float]] = []
    for name in ["", *names]:
        of_app = known if name == "" else known & (apps == name)
        if np.count_nonzero(of_app) < LEAST:
            continue
        lines: list[list[float]] = []
        for group in range(len(POSITIONS)):
            rows = of_app & (groups == group)
            if np.count_nonzero(rows) >= LEAST:
                line = _line(true[rows], said[rows])
            else:
                line = pooled[group] if pooled else lines[-1]
            spread[rows] = _spread(line, true[rows], said[rows])
            lines.append(line)
        pooled = pooled or lines
        follows = of_app[1:] & of_app[:-1] & (jobs[1:] == jobs[:-1])
        pairs = np.corrcoef(spread[1:][follows], spread[:-1][follows])
        lag = float(pairs[0, 1]) if np.count_nonzero(follows) >= LEAST else table[""]["lag"]
        table[name] = {"lag": round(lag, 3), "lines": lines}
    return table, _shape(spread[known])


def _positions(jobs: Any) -> Any:
    """Place of each stage in its job."""
    count: dict[Hashable, int] = defaultdict(int)
    found = []
    for job in jobs:
        found.append(count[job])
        count[job] += 1
    return np.array(found)


def _logs(values: DoubleArray) -> DoubleArray:
    return np.log(np.maximum(1.0, values))


def _line(true: DoubleArray, said: DoubleArray) -> list[float]:
    """c, b and s of y = c + b x + s e, by least squares."""
    spread = float(np.std(true))
    b = float(np.cov(true, said)[0, 1]) / spread**2 if spread > 1e-6 else 0.0
    c = float(np.mean(said)) - b * float(np.mean(true))
    return [round(c, 4), round(b, 4), round(max(0.01, float(np.std(said - c - b * true))), 4)]


def _spread(line: Sequence[float], true: DoubleArray, said: DoubleArray) -> DoubleArray:
    """e of each stage."""
    c, b, s = line
    out: DoubleArray = (said - c - b * true) / s
    return out


def _shape(spread: DoubleArray) -> list[float]:
    return [round(float(q), 4) for q in np.nanquantile(spread, LEVELS)]


def main(argv: Sequence[str] | None = None) -> int:
    """Cross-validate, fit and write."""
    parser = argparse.ArgumentParser(prog="maestroctl.predict.residuals", description=__doc__)
    parser.add_argument("--stages", type=Path, required=True, help="folder of stage traces")
    parser.add_argument("--without", action="append", default=[], help="source to leave out")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(argv)
    jobs = load_trace_jobs(options.stages, without=options.without)
    table, told = cross_validate(jobs, TrainConfig(), num_folds=options.folds)
    document = fit_errors(gather(table, told))
    document["sources"] = sorted({job.source for job in jobs})
    options.out.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
