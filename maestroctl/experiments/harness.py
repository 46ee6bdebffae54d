"""Repeats runs over seeds and says how sure the figures are.

Two policies are compared on the same jobs, arrivals and prediction errors (common random numbers),
so the interval of a difference is that of the differences per seed, which is far narrower than
the difference of two intervals.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, NamedTuple, TypeVar

from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.registry import ORDERINGS, ROUTINGS, make_ordering
from maestroctl.sim.config import SimulationSpec
from maestroctl.sim.jobs import JobPlan
from maestroctl.sim.report import summarize
from maestroctl.sim.workload import make_plans
from maestroctl.sim.world import World

_T_975 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""0.975 quantile of Student's t for 1 to 10 degrees of freedom; 1.96 and a bit beyond."""

USUAL_JOBS = 2000
Progress = Callable[[str], None]
CellT = TypeVar("CellT", bound=Hashable)
TaskT = TypeVar("TaskT")
FoundT = TypeVar("FoundT")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run.

    Attributes:
        jobs: per run, warm-up included. `warmup`: the first of them, counted nowhere.
        seeds: repetitions of a headline cell; other cells run `grid_seeds`.
        headline: times as many jobs in the one cell that `slo_sweep` is quoted for.
    """

    jobs: int = USUAL_JOBS
    warmup: int = 200
    seeds: int = 5
    grid_seeds: int = 1
    headline: int = 1

    def at_headline(self) -> Scale:
        """The size of the headline cell."""
        return replace(self, jobs=self.jobs * self.headline, warmup=self.warmup * self.headline)

    def part(self, number: int) -> int:
        """Of an experiment that runs `number` jobs at the usual size: fewer where fewer are asked
        for, more in proportion where more are."""
        return max(min(number, self.jobs), number * self.jobs // USUAL_JOBS)

    def runs(self, number: int) -> range:
        """Seeds of `number` repetitions."""
        return range(1, number + 1)


DEFAULT = Scale(headline=3)
"""Three times: what lets all experiments end within half an hour on two cores."""
QUICK = Scale(jobs=400, warmup=50, seeds=2)
FULL = Scale(jobs=15_000, warmup=1000, seeds=5, grid_seeds=3)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and half of its 95 % interval; None with one seed."""

    mean: float
    half_width: float | None
    values: tuple[float, ...]

    def document(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"mean": self.mean, "ci95": self.half_width, "values": list(self.values)}


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and interval of one figure per seed."""
    half = None
    if len(values) > 1:
        freedom = len(values) - 1
        t = _T_975[freedom - 1] if freedom <= len(_T_975) else 1.96 + 2.4 / freedom
        half = t * stdev(values) / math.sqrt(len(values))
    return Estimate(fmean(values), half, tuple(values))


def paired(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """`first` - `second`, seed by seed."""
    return estimate([a - b for a, b in zip(first, second, strict=True)])


class Plot(NamedTuple):
    """What the picture shows, by names of columns.

    Attributes:
        series: a line for each of its values; None = a bar for each row.
        panels: what is drawn over `x`.
        facet: a row of panels for each of its values.
    """

    x: str
    series: str | None
    panels: tuple[str, ...]
    facet: str | None = None


@dataclass(slots=True)
class Experiment:
    """What an experiment comes to.

    Attributes:
        name: in the catalogue. `title`: of the report.
        columns: of `rows`, in order; a value may be a number, a text, None or an `Estimate`.
        plot: the picture; a function draws on a matplotlib figure itself.
        parameters: what was fixed before it ran.
        headline: the figures that other documents quote.
        paper: what the paper says, for the reader to compare.
        notes: what to know about the figures.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    plot: Plot | Callable[[Any], None]
    parameters: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    headline: dict[str, Any] = field(default_factory=dict)
    paper: str = ""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


_CALLS: list[tuple[Callable[[Any], Any], Any]] = []
"""What the worker processes of `Runner.map` find after the fork; filled only meanwhile."""


class Runner:
    """Runs simulations for one experiment, and remembers the jobs of a seed.

    Args:
        progress: told one line per run.
        workers: processes of `map` and what uses it.
    """

    def __init__(self, progress: Progress, workers: int = 1) -> None:
        self._progress = progress
        self._workers = workers
        self._plans: tuple[object, list[JobPlan]] | None = None

    def run(
        self,
        spec: SimulationSpec,
        label: str,
        wrap: Callable[[OrderingPolicy], OrderingPolicy] | None = None,
    ) -> dict[str, Any]:
        """One run; the figures of `sim.report.summarize`.

        Args:
            wrap: makes an ablation out of the ordering policy that `spec` names.
        """
        plans = self._jobs(spec)
        began = time.perf_counter()
        ordering = wrap(make_ordering(spec.world.fleet.policy)) if wrap is not None else None
        world = World(spec.world, spec.error, ordering=ordering)
        gc.disable()  # a run makes no cyclic garbage while it lasts
        try:
            result = world.run(plans)
        finally:
            gc.enable()
        figures = summarize(result, plans, spec.workload.warmup)
        self._progress(f"{label}: {time.perf_counter() - began:.1f} s")
        return figures

    def map(self, function: Callable[[TaskT], FoundT], tasks: Sequence[TaskT]) -> list[FoundT]:
        """`function` of every task, on several processes where there are; in the order given.

        What it returns crosses processes.
        """
        if self._workers <= 1 or len(tasks) <= 1:
            return [function(task) for task in tasks]
        _CALLS[:] = [(function, task) for task in tasks]
        try:
            context = multiprocessing.get_context("fork")
            with _without_interrupts():
                pool = context.Pool(min(self._workers, len(tasks)), _begin_worker)
            with pool:
                found = pool.map(_call, range(len(tasks)), chunksize=1)
                pool.close()  # they leave by themselves, and need no signal
                pool.join()
            return found
        finally:
            _CALLS.clear()

    def say(self, line: str) -> None:
        """Tell the progress."""
        self._progress(line)

    def grid(
        self,
        function: Callable[[CellT, int], FoundT],
        cells: Sequence[CellT],
        seeds: Sequence[int],
    ) -> dict[CellT, list[FoundT]]:
        """`function` of every cell and seed; what it found per cell, seed by seed."""
        tasks = [(cell, seed) for cell in cells for seed in seeds]
        found = iter(self.map(lambda task: function(*task), tasks))
        return {cell: [next(found) for _ in seeds] for cell in cells}

    def run_grid(
        self,
        make: Callable[[CellT, int], SimulationSpec],
        cells: Sequence[CellT],
        seeds: Sequence[int],
    ) -> dict[CellT, list[dict[str, Any]]]:
        """`run` of every cell and seed."""
        return self.grid(
            lambda cell, seed: self.run(make(cell, seed), f"{cell}, seed {seed}"), cells, seeds
        )

    def _jobs(self, spec: SimulationSpec) -> list[JobPlan]:
        """Jobs of the last workload are kept: policies are compared on the same ones."""
        key = (spec.workload, id(spec.source), tuple(spec.world.profiles.values()))
        if self._plans is None or self._plans[0] != key:
            self._plans = (key, make_plans(spec.workload, spec.source, spec.world.profiles))
        return self._plans[1]


def _call(index: int) -> Any:
    function, task = _CALLS[index]
    return function(task)


def _begin_worker() -> None:
    """A worker ends at SIGTERM, whatever handler its parent has left to it, and with its parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Killed, the parent says nothing: its workers would finish and wait for more for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes made meanwhile never see Ctrl-C, which reaches all; the parent answers it after."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def with_policy(spec: SimulationSpec, **names: Any) -> SimulationSpec:
    """The same run under another policy."""
    fleet = spec.world.fleet
    policy: PolicySpec = replace(fleet.policy, **names)
    return replace(spec, world=replace(spec.world, fleet=replace(fleet, policy=policy)))


def known_orderings(wanted: Sequence[str]) -> list[str]:
    """Those that this build has, in the order given."""
    return [name for name in wanted if name in ORDERINGS]


def known_routings(wanted: Sequence[str]) -> list[str]:
    """Those that this build has, in the order given."""
    return [name for name in wanted if name in ROUTINGS]
