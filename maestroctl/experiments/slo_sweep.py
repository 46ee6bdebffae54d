"""Maestro Fig. 7: SLO attainment, latency and interactive queueing over load and batch ratio.

The set-up, routing included, is fixed on baselines alone (`slo_calibration`); then nothing is
changed any more and every policy runs, on seeds that the calibration has not seen. The stress point
(rate 2.0, batch ratio 0.8) is the headline cell: calibrated and run with more jobs and seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from maestroctl.estimate.service_time import estimate_prefill_s
from maestroctl.experiments.harness import (
    Estimate,
    Experiment,
    Plot,
    Runner,
    Scale,
    estimate,
    known_orderings,
    paired,
)
from maestroctl.experiments.setup import MODEL, qwen3_profile
from maestroctl.experiments.slo_calibration import SEEDS, STRESS, SetUp, calibrate, make_spec
from maestroctl.experiments.slo_calibration import slo as slo_of
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.workload import JobSource

RATES = (0.4, 0.8, 1.2, 1.6, 2.0)
RATIOS = (0.2, 0.4, 0.6, 0.8)
BASELINES = ("fcfs", "edf")
OURS = "workflow_slo"
ORACLES = ("oracle_srtf", "oracle_stjf", "oracle_slo")
GRID = (*BASELINES, "stjf", "workflow_srtf", OURS, "oracle_slo")
"""Policies of every cell; the stress cell has every oracle."""
LOSS_PP = 0.5
"""A cell counts as lost below minus this: about three jobs of a full run."""
Cell = tuple[str, float, float]
"""Policy, rate, batch ratio."""
FIRST_SEED = 41
"""Of those that are reported: neither calibration nor any choice of a rule has seen them."""


def run(scale: Scale, source: JobSource, runner: Runner) -> Experiment:
    """Calibrate on the baselines, then sweep."""
    chosen = calibrate(scale.at_headline(), source, runner)
    large = scale.at_headline()
    experiment = Experiment(
        "slo_sweep",
        "SLO attainment over load and batch ratio (Maestro Fig. 7)",
        (
            *("policy", "rate", "batch", "jobs", "slo", "slo_interactive", "latency_s"),
            *("interactive_ttft_s", "interactive_delay_s", "interactive_queue_s"),
        ),
        Plot("rate", "policy", ("slo", "latency_s", "interactive_ttft_s"), facet="batch"),
        parameters={
            "routing": chosen.routing,
            "edf and fcfs by routing": {
                name: f"{edf:.3f}, {fcfs:.3f}" for name, (edf, fcfs) in chosen.compared.items()
            },
            "nodes": chosen.nodes,
            "deadline_factor": chosen.factor,
            "edf at calibration": chosen.edf,
            "fcfs at calibration": chosen.fcfs,
            "calibrated on seeds": SEEDS,
            "reported seeds": f"from {FIRST_SEED}: {scale.seeds} at the stress point, else"
            f" {scale.grid_seeds}",
            "jobs": f"{large.jobs} at the stress point, else {scale.jobs}",
            "warm-up": f"{large.warmup} of them there, else {scale.warmup}",
        },
        paper="at rate 2.0, batch 0.8: EDF 50.0 %, Maestro 73.6 % (+23.6 pp), FCFS under 10 %;"
        " interactive queueing delay -84.8 %",
    )
    cells = [
        (policy, rate, ratio)
        for ratio in RATIOS
        for rate in RATES
        for policy in known_orderings((*GRID, *ORACLES[:2]) if (rate, ratio) == STRESS else GRID)
    ]
    found = _run_cells(scale, source, runner, chosen, cells)
    experiment.rows = [
        _row(*cell, (large if cell[1:] == STRESS else scale).jobs, found[cell]) for cell in cells
    ]
    stress = {policy: found[policy, r, b] for policy, r, b in cells if (r, b) == STRESS}
    experiment.headline = {**headline(stress), **compare(found)}
    experiment.notes.append(
        "The oracles are told true lengths; the others what predictors with the measured error say."
        " `workflow_slo`, `workflow_srtf` and their oracles keep slots for interactive stages."
        " `delay_reduction` is of the time to the first token less what the prompt takes in an idle"
        " engine: that has what an engine lets a stage wait that it was sent, and what neighbours"
        " cost; `queue_reduction` is of the coordinator's queue alone, `ttft_reduction` of all."
    )
    return experiment


def headline(stress: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Gain over EDF in percentage points, share of the best oracle's gain, delay reduction."""
    if OURS not in stress or "edf" not in stress:
        return {"missing": [name for name in ("edf", OURS) if name not in stress]}
    slo = {policy: [slo_of(f) for f in figures] for policy, figures in stress.items()}
    gain = paired([100 * v for v in slo[OURS]], [100 * v for v in slo["edf"]])
    known = [name for name in ORACLES if name in slo]
    best = max(known, key=lambda name: sum(slo[name]), default=None)
    oracle = paired([100 * v for v in slo[best]], [100 * v for v in slo["edf"]]) if best else None
    return {
        "gain_over_edf_pp": gain.mean,
        "gain_over_edf_pp_ci95": gain.half_width,
        "best_oracle": best,
        "oracle_gain_pp": oracle.mean if oracle else None,
        "share_of_oracle_gain": gain.mean / oracle.mean if oracle and oracle.mean > 0 else None,
        "delay_reduction": _reduction(stress, _delay),
        "ttft_reduction": _reduction(stress, _ttft),
        "queue_reduction": _reduction(stress, _queue),
        "slo": {policy: estimate(values) for policy, values in slo.items()},
    }


def _reduction(
    stress: Mapping[str, list[dict[str, Any]]], delay: Callable[[dict[str, Any]], float]
) -> float | None:
    """Part of EDF's mean delay that ours saves."""
    ours, edf = (fmean(delay(f) for f in stress[policy]) for policy in (OURS, "edf"))
    return 1.0 - ours / edf if edf else None


def compare(found: Mapping[Cell, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Ours against each other policy over all cells: mean and worst difference, cells lost."""
    slo = {cell: fmean(slo_of(f) for f in figures) for cell, figures in found.items()}
    told: dict[str, Any] = {}
    for rival in ("edf", "stjf", "workflow_srtf"):
        leads = {
            f"rate {rate} batch {ratio}": 100 * (slo[OURS, rate, ratio] - slo[rival, rate, ratio])
            for policy, rate, ratio in found
            if policy == OURS and (rival, rate, ratio) in slo
        }
        if leads:
            told[f"lead_over_{rival}_pp"] = {
                "mean": fmean(leads.values()),
                "least": min(leads.values()),
                "cells_lost": [cell for cell, lead in leads.items() if lead < -LOSS_PP],
            }
    return told


def _run_cells(
    scale: Scale, source: JobSource, runner: Runner, setup: SetUp, cells: Sequence[Cell]
) -> dict[Cell, list[dict[str, Any]]]:
    """Figures of every cell, one per seed."""

    def play(size: Scale, of: Sequence[Cell], seeds: int) -> dict[Cell, list[dict[str, Any]]]:
        return runner.run_grid(
            lambda cell, seed: make_spec(
                size, source, setup, cell, seed, is_oracle=cell[0] in ORACLES
            ),
            of,
            range(FIRST_SEED, FIRST_SEED + seeds),
        )

    stress = [cell for cell in cells if cell[1:] == STRESS]
    others = [cell for cell in cells if cell[1:] != STRESS]
    return {
        **play(scale.at_headline(), stress, scale.seeds),
        **play(scale, others, scale.grid_seeds),
    }


def _row(
    policy: str, rate: float, ratio: float, jobs: int, figures: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "policy": policy,
        "rate": rate,
        "batch": ratio,
        "jobs": jobs,
        "slo": estimate([slo_of(f) for f in figures]),
        "slo_interactive": _of([f["interactive"]["slo_attainment"] for f in figures]),
        "latency_s": _of([f["all"]["latency_s"]["mean"] for f in figures]),
        "interactive_ttft_s": estimate([_ttft(f) for f in figures]),
        "interactive_delay_s": estimate([_delay(f) for f in figures]),
        "interactive_queue_s": estimate([_queue(f) for f in figures]),
    }


def _of(values: list[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return estimate(known) if known else None


def _ttft(figures: dict[str, Any]) -> float:
    """Mean seconds from when a stage of an interactive job is ready to its first token."""
    return float(figures["interactive"]["ttft_s"]["mean"] or 0.0)


def _delay(figures: dict[str, Any]) -> float:
    """The part of it that the stage waits for others: less its round trip and its own prefill."""
    prompt_tokens = round(figures["interactive"]["prompt_tokens"] or 0)
    alone_s = NetworkSpec().rtt_s + estimate_prefill_s(qwen3_profile(MODEL), prompt_tokens)
    return max(0.0, _ttft(figures) - alone_s)


def _queue(figures: dict[str, Any]) -> float:
    """The part of it that the stage waits in the coordinator's queue."""
    return float(figures["interactive"]["queue_s"]["mean"] or 0.0)
