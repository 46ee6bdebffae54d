"""The jobs of a run, decided before its first event.

Every job draws from a generator of its own, seeded by the run's seed and its number, so a change
to one job changes no other and two policies meet the same jobs (common random numbers). Recorded
or generated jobs become agent jobs: one declared step that makes its calls in order.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.workflow import WorkflowSpec
from maestroctl.errors import ConfigError
from maestroctl.estimate.service_time import estimate_execution_s
from maestroctl.sim import generator
from maestroctl.sim.arrivals import bursty_times, poisson_times, recorded_times
from maestroctl.sim.jobs import Call, JobPlan, agent_calls, agent_workflow
from maestroctl.sim.traces import TraceCall, TraceJob

ARRIVAL_KINDS = ("poisson", "bursty", "trace")


@dataclass(frozen=True, slots=True)
class ArrivalSpec:
    """``[arrivals]``: jobs per second.

    Attributes:
        kind: of `ARRIVAL_KINDS`.
        cv: of ``bursty``, over 0 as `rate_rps` is.
        trace: name of the `recorded` times of ``trace``.
    """

    kind: str = "poisson"
    rate_rps: float = 1.0
    cv: float = 3.0
    trace: str = ""
    recorded: tuple[float, ...] = ()

    def times(self, rng: random.Random, number: int) -> list[float]:
        """Rising times from 0."""
        match self.kind:
            case "poisson":
                return poisson_times(rng, number, self.rate_rps)
            case "bursty":
                return bursty_times(rng, number, self.rate_rps, self.cv)
            case _:
                return recorded_times(rng, number, self.rate_rps, self.recorded)


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """``[[class]]``: a part of the jobs.

    Attributes:
        share: of all jobs; shares are scaled to sum to 1.
        apps: applications it draws from, each as often as it was recorded; empty = all.
        deadline_factor: deadline = this × the job's own time on an idle fleet; None = none.
        deadline_s: added to that.
        tool_s: mean of an exponential time of the tool after each call that makes one.
        models: candidates; empty = the first model. `role_models` overrides it per role.
    """

    service_class: ServiceClass
    share: float
    apps: tuple[str, ...] = ()
    deadline_factor: float | None = None
    deadline_s: float = 0.0
    tool_s: float = 0.0
    models: tuple[ModelName, ...] = ()
    role_models: Mapping[str, tuple[ModelName, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What is played.

    Attributes:
        jobs: how many. `warmup`: of these, the first ones that no figure counts.
        classes: at least one.
        max_output: longest answer in tokens; longer recorded ones are cut.
    """

    jobs: int
    classes: tuple[ClassSpec, ...]
    arrivals: ArrivalSpec = ArrivalSpec()
    warmup: int = 0
    seed: int = 1
    max_output: int = 4096
    start_s: float = 0.0


class JobSource:
    """Where jobs come from: recorded ones, or the fitted generator when there are none.

    Args:
        folder: the data folder, for what is recorded besides jobs.
    """

    def __init__(self, recorded: Sequence[TraceJob] = (), folder: Path | None = None) -> None:
        self.folder = folder
        self._by_app: dict[str, list[TraceJob]] = defaultdict(list)
        for job in recorded:
            self._by_app[job.app].append(job)

    @property
    def apps(self) -> dict[str, float]:
        """Applications, and how many of their jobs were recorded."""
        if self._by_app:
            return {app: float(len(jobs)) for app, jobs in self._by_app.items()}
        return generator.app_weights(generator.load_parameters())

    def draw(self, rng: random.Random, apps: Mapping[str, float]) -> TraceJob:
        """A whole job of one of these applications."""
        app = rng.choices(list(apps), list(apps.values()))[0]
        if self._by_app:
            return rng.choice(self._by_app[app])
        return generator.make_job(rng, generator.load_parameters(), app)


def make_plans(
    spec: WorkloadSpec, source: JobSource, profiles: Mapping[ModelName, ModelProfile]
) -> list[JobPlan]:
    """Every job of a run, in order of arrival.

    Args:
        profiles: for clamping lengths and for deadlines.

    Raises:
        ConfigError: a class draws from an application that is not there.
    """
    known = source.apps
    pools = [_pool(c, known) for c in spec.classes]
    shares = [c.share for c in spec.classes]
    times = spec.arrivals.times(random.Random(f"{spec.seed}/arrivals"), spec.jobs)
    workflows: dict[str, WorkflowSpec] = {}
    plans = []
    for number, at_s in enumerate(times):
        rng = random.Random(f"{spec.seed}/job/{number}")
        # The class is decided by one draw, so a larger share of batch jobs turns some interactive
        # jobs into batch ones and leaves the others as they were.
        index = _index(shares, rng.random())
        wanted = spec.classes[index]
        job = source.draw(rng, pools[index])
        workflow = workflows.setdefault(job.app, agent_workflow(job.app))
        calls = [_make_call(call, wanted, rng, profiles, spec) for call in job.calls]
        plans.append(
            JobPlan(
                JobId(f"j{number:06d}"),
                workflow,
                wanted.service_class,
                spec.start_s + at_s,
                agent_calls(calls),
                _deadline_s(wanted, calls, profiles),
            )
        )
    return plans


def ideal_s(calls: Sequence[Call], profiles: Mapping[ModelName, ModelProfile]) -> float:
    """Seconds of the calls one after the other on an idle, awake fleet, tools included."""
    return sum(
        estimate_execution_s(profiles[call.models[0]], call.prompt_tokens, call.output_tokens)
        + call.tool_s
        for call in calls
    )


def _pool(wanted: ClassSpec, known: Mapping[str, float]) -> dict[str, float]:
    for app in wanted.apps:
        if app not in known:
            raise ConfigError(
                f"class {wanted.service_class.value!r} draws from {app!r}, which is not there",
                hint=f"there are: {', '.join(sorted(known))}",
            )
    return {app: known[app] for app in wanted.apps or sorted(known)}


def _index(shares: Sequence[float], part: float) -> int:
    left = part * sum(shares)
    for index, share in enumerate(shares):
        left -= share
        if left < 0:
            return index
    return len(shares) - 1


def _make_call(
    call: TraceCall,
    wanted: ClassSpec,
    rng: random.Random,
    profiles: Mapping[ModelName, ModelProfile],
    spec: WorkloadSpec,
) -> Call:
    models = wanted.role_models.get(call.role) or wanted.models or (next(iter(profiles)),)
    room = min(profiles[model].max_model_len for model in models)
    output = max(1, min(call.output_tokens, spec.max_output, room // 2))
    tool_s = rng.expovariate(1.0) * wanted.tool_s
    return Call(
        role=call.role,
        models=models,
        prompt_tokens=max(1, min(call.prompt_tokens, room - output)),
        output_tokens=output,
        tool_s=tool_s if call.tool_called else 0.0,
        tools_available=call.tools_available,
        tool_called=call.tool_called,
        noise=(rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)),
    )


def _deadline_s(
    wanted: ClassSpec, calls: Sequence[Call], profiles: Mapping[ModelName, ModelProfile]
) -> float | None:
    if wanted.deadline_factor is None:
        return None
    return wanted.deadline_s + wanted.deadline_factor * ideal_s(calls, profiles)
