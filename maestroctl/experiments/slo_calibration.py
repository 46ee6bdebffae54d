"""The set-up of `slo_sweep`, fixed on the baselines `fcfs` and `edf` alone.

For a routing, the smallest number of nodes is taken at which some deadline factor gives `edf`
50 ± 3 % and `fcfs` less than 15 % at the stress point (rate 2.0, batch ratio 0.8). Both baselines
are then tried under every routing on those nodes; the one that serves `edf` best (`fcfs`, where
`edf` does not care) is taken, and nodes and factor are found again under it, so that the baselines
have the routing that is best for them. Seeds are `SEEDS`, which no figure uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from maestroctl.experiments.harness import Runner, Scale, known_routings, with_policy
from maestroctl.experiments.setup import MEASURED, TRUTH, mixed_simulation
from maestroctl.sim.config import SimulationSpec
from maestroctl.sim.workload import JobSource

STRESS = (2.0, 0.8)
"""Rate, batch ratio."""
SEEDS = (1, 2)
ROUTINGS = ("least_loaded", "single_node", "round_robin", "power_of_two", "maestroctl")
"""Tried; the last is the product's default for several nodes. The first finds where to try them."""
EDF_TARGET, EDF_TOLERANCE, FCFS_LIMIT = 0.50, 0.03, 0.15
MAX_NODES = 16
FACTORS = (1.2, 10.0)
"""Deadline factors that are looked at: a user waits up to ten times the idle time, not forty."""
_MOST_HALVINGS = 12


@dataclass(frozen=True, slots=True)
class SetUp:
    """What the calibration fixed, and what it saw.

    Attributes:
        edf, fcfs: attainment there.
        compared: routing -> attainment of `edf` and of `fcfs` where routings were tried.
    """

    routing: str
    nodes: int
    factor: float
    edf: float = 0.0
    fcfs: float = 0.0
    compared: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def make_spec(
    scale: Scale,
    source: JobSource,
    setup: SetUp,
    cell: tuple[str, float, float],
    seed: int,
    *,
    is_oracle: bool = False,
) -> SimulationSpec:
    """One run of a cell: policy, rate, batch ratio."""
    ordering, rate, ratio = cell
    spec = mixed_simulation(
        source,
        scale,
        ordering=ordering,
        seed=seed,
        nodes=setup.nodes,
        rate_rps=rate,
        batch_ratio=ratio,
        deadline_factor=setup.factor,
        error=TRUTH if is_oracle else MEASURED,
    )
    return with_policy(spec, routing=setup.routing)


def slo(figures: dict[str, Any]) -> float:
    """SLO attainment of a run, both classes."""
    return float(figures["all"]["slo_attainment"] or 0.0)


def calibrate(scale: Scale, source: JobSource, runner: Runner) -> SetUp:
    """Routing, nodes and deadline factor that put the baselines where they should be.

    Raises:
        ValueError: no node count up to `MAX_NODES` does.
    """
    baselines = Baselines(scale, source, runner)
    first = baselines.find_nodes(ROUTINGS[0])
    compared = {
        routing: baselines.attained(replace(first, routing=routing))
        for routing in known_routings(ROUTINGS)
    }
    best = max(compared, key=lambda routing: compared[routing])
    found = first if best == first.routing else baselines.find_nodes(best)
    return replace(found, compared=compared)


class Baselines:
    """What `edf` and `fcfs` keep at the stress point."""

    def __init__(self, scale: Scale, source: JobSource, runner: Runner) -> None:
        self._scale = scale
        self._source = source
        self._runner = runner

    def attained(self, setup: SetUp) -> tuple[float, float]:
        """Of `edf` and of `fcfs`."""
        return self._mean("edf", setup), self._mean("fcfs", setup)

    def find_nodes(self, routing: str) -> SetUp:
        """The fewest nodes that serve, and their factor.

        More nodes never keep fewer deadlines, so those too few for the loosest factor are found by
        halving.

        Raises:
            ValueError: no node count up to `MAX_NODES` serves.
        """
        low, high = 1, MAX_NODES + 1
        while low < high:
            nodes = (low + high) // 2
            loosest = self._mean("edf", SetUp(routing, nodes, FACTORS[1]))
            low, high = (nodes + 1, high) if loosest < EDF_TARGET - EDF_TOLERANCE else (low, nodes)
        for nodes in range(low, MAX_NODES + 1):
            found = self._find_factor(routing, nodes)
            if found is not None:
                return found
        raise ValueError(
            f"no set-up with up to {MAX_NODES} nodes puts EDF at 50 % and FCFS below 15 %"
        )

    def _find_factor(self, routing: str, nodes: int) -> SetUp | None:
        """Halve towards EDF at 50 %; None when FCFS is not under its limit there."""
        low, high = FACTORS
        for _ in range(_MOST_HALVINGS):
            factor = round((low * high) ** 0.5, 4)
            edf = self._mean("edf", SetUp(routing, nodes, factor))
            if abs(edf - EDF_TARGET) <= EDF_TOLERANCE:
                found = SetUp(routing, nodes, factor, edf)
                fcfs = self._mean("fcfs", found)
                return replace(found, fcfs=fcfs) if fcfs < FCFS_LIMIT else None
            low, high = (factor, high) if edf < EDF_TARGET else (low, factor)
        return None

    def _mean(self, policy: str, setup: SetUp) -> float:
        """Attainment of a baseline, mean over the seeds."""
        found = self._runner.run_grid(
            lambda name, seed: make_spec(self._scale, self._source, setup, (name, *STRESS), seed),
            [policy],
            SEEDS[: self._scale.seeds],
        )
        return fmean(slo(figures) for figures in found[policy])
