"""The jobs of `bench-live`: recorded agent jobs, their lengths scaled to what a small CPU can do.

Free parameters, fixed before any of our own policies was looked at: question answering and shell
jobs are interactive, code and long dialogues batch; a job uses one of three models, drawn evenly;
arrivals are Poisson; lengths are scaled so that the decoding alone would keep the engines busy for
`LOAD` of the time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from maestroctl.domain.stage import ServiceClass

MODELS = ("one", "two", "three")
LOAD = 0.4
_MOST_CALLS = 4
_PROMPTS = (8, 96)
_OUTPUTS = (2, 64)
_INTERACTIVE = ("fireact", "intercode")
_SAMPLE = Path(__file__).with_name("live_jobs.json")


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured of the engine before the runs, seconds.

    Attributes:
        token_s: of one token with nothing beside it.
        batch_token_s: of one iteration with `batch` sequences.
        prompt_s: of one prompt token.
        switch_s: longer than an ordinary call when another model had to give way first.
    """

    token_s: float
    batch_token_s: float
    batch: int
    prompt_s: float
    switch_s: float


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One job: calls one after the other on one model; (prompt tokens, output tokens) each."""

    name: str
    app: str
    model: str
    service_class: ServiceClass
    arrival_s: float
    calls: tuple[tuple[int, int], ...]

    def idle_s(self, costs: Costs) -> float:
        """How long it would take with the machine for itself and its model awake."""
        return sum(p * costs.prompt_s + o * costs.token_s for p, o in self.calls)


Recorded = tuple[str, str, tuple[tuple[int, int], ...]]
"""Source, application, calls."""


def load_sample(data: Path | None) -> list[Recorded]:
    """Recorded jobs: the shipped sample, or those of a data folder.

    Raises:
        ConfigError: the folder has no traces.
    """
    if data is None:
        document = json.loads(_SAMPLE.read_text(encoding="utf-8"))
        return [
            (job["source"], job["app"], tuple((p, o) for p, o in job["calls"]))
            for job in document["jobs"]
        ]
    from maestroctl.sim.traces import load_jobs

    return [
        (job.source, job.app, tuple((c.prompt_tokens, c.output_tokens) for c in job.calls))
        for job in load_jobs(data)
    ]


def make_jobs(
    sample: Sequence[Recorded], number: int, span_s: float, costs: Costs, seed: int
) -> list[LiveJob]:
    """`number` jobs that arrive within about `span_s`."""
    rng = random.Random(seed)
    chosen = rng.sample(list(sample), number) if number <= len(sample) else list(sample)
    whole = sum(output for _, _, calls in chosen for _, output in calls[:_MOST_CALLS])
    wanted = LOAD * span_s * costs.batch / costs.batch_token_s
    scale = min(1.0, wanted / whole)
    jobs, now_s = [], 0.0
    for index, (source, app, calls) in enumerate(chosen):
        now_s += rng.expovariate(number / span_s)
        fitted = tuple(
            (_clamp(p / 16, _PROMPTS), _clamp(o * scale, _OUTPUTS)) for p, o in calls[:_MOST_CALLS]
        )
        kind = ServiceClass.INTERACTIVE if source in _INTERACTIVE else ServiceClass.BATCH
        jobs.append(LiveJob(f"j{index:03d}", app, rng.choice(MODELS), kind, now_s, fitted))
    return jobs


def _clamp(value: float, limits: tuple[int, int]) -> int:
    return max(limits[0], min(limits[1], round(value)))
