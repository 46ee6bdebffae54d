"""Measures models one after the other, with progress; writes each profile as soon as it is done."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from maestroctl.cli import fleet_source, profile_view
from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import make_output_folder
from maestroctl.config.home import home_dir
from maestroctl.config.kinds import did_you_mean
from maestroctl.config.profile_store import PROFILES, is_profiled_kind, profile_path
from maestroctl.config.profile_writer import save_profile
from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.llm import ModelSpec
from maestroctl.domain.units import format_seconds
from maestroctl.errors import ConfigError, EngineError
from maestroctl.live.profile.measure import Progress, Tell, find_subject, fit_plan, measure
from maestroctl.live.profile.measurements import Measurements
from maestroctl.live.profile.plan import ProfilePlan
from maestroctl.live.profile.record import Subject, kv_mismatch, make_record


async def profile_models(
    names: Sequence[str], fleet_file: Path | None, out: Path | None, *, quick: bool, as_json: bool
) -> list[dict[str, Any]]:
    """Measure and write; what was written, one document per profile.

    Args:
        names: of models or aliases; empty = every model that can be measured.
        out: None = the folder that `serve` reads.

    Raises:
        ConfigError: an unknown model, or one that cannot be measured.
        MaestroError: an engine failed.
        CancelledError: interrupted; what was measured is written.
    """
    fleet = fleet_source.load(fleet_file).spec
    models = _choose(fleet, names)
    folder = out or home_dir(os.environ) / PROFILES
    make_output_folder(folder)
    try:
        threads = next(iter(fleet.nodes.values())).threads
        subjects = [await _prepare(fleet, model, threads) for model in models]
        written = []
        for place, subject in enumerate(subjects):
            others = [other for i, other in enumerate(subjects) if i != place]
            written.append(await _profile(subject, others, folder, quick=quick, as_json=as_json))
        return written
    finally:
        with suppress(OSError):  # unless something was kept there
            folder.rmdir()


async def _prepare(fleet: FleetSpec, model: ModelSpec, threads: int | None) -> Subject:
    with terminal.working(f"{model.name}: preparing") as status:

        def say(text: str) -> None:
            status.update(f"{model.name}: {text}")

        return await find_subject(model, fleet.engines[model.engine], threads, say)


async def _profile(
    subject: Subject, others: Sequence[Subject], folder: Path, *, quick: bool, as_json: bool
) -> dict[str, Any]:
    plan = fit_plan(subject, ProfilePlan.quick() if quick else ProfilePlan())
    seen = Measurements()
    name = subject.model.name
    terminal.notice(f"{name} on {subject.device.name}, {subject.engine.kind} {subject.version}")
    try:
        with _shown(name) as tell:
            await measure(subject, plan, seen, tell, others[0] if others else None)
    except (asyncio.CancelledError, EngineError):
        # Minutes of work: an engine that fails late does not take what it gave with it.
        _write(subject, seen, plan, folder, as_json=as_json, interrupted=True)
        raise
    return _write(subject, seen, plan, folder, as_json=as_json, interrupted=False) or {}


def _write(
    subject: Subject,
    seen: Measurements,
    plan: ProfilePlan,
    folder: Path,
    *,
    as_json: bool,
    interrupted: bool,
) -> dict[str, Any] | None:
    record = make_record(subject, seen, plan)
    name = subject.model.name
    if record is None:
        terminal.notice(f"{name}: ended before anything could be kept.")
        return None
    path = profile_path(folder, subject.device.name, name)
    save_profile(path, record)
    mismatch = kv_mismatch(subject, seen)
    if mismatch is not None:
        terminal.notice(f"{name}: {mismatch}; the engine's figure is kept.")
    if not as_json:
        profile_view.print_record(record)
    ended = "Not finished; what was measured is in" if interrupted else "Wrote"
    terminal.notice(f"{ended} {path}")
    return {"path": str(path), **profile_view.record_document(record)}


def _choose(fleet: FleetSpec, names: Sequence[str]) -> list[ModelSpec]:
    aliases = {alias: spec for spec in fleet.models.values() for alias in spec.aliases}
    known = {**{str(name): spec for name, spec in fleet.models.items()}, **aliases}
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown model {name!r}", hint=did_you_mean(name, list(known)))
    chosen = [known[name] for name in names]
    if not names:
        chosen = [
            m for m in fleet.models.values() if is_profiled_kind(fleet.engines[m.engine].kind)
        ]
        if not chosen:
            raise ConfigError(
                "no model of this fleet can be measured", hint="only vllm and vllm-cpu are"
            )
    return list(dict.fromkeys(chosen))


@contextmanager
def _shown(name: str) -> Iterator[Tell]:
    """A bar with the time left on a terminal, a line per step in a pipe."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    if not terminal.err.is_terminal:
        last = ""

        def say(progress: Progress) -> None:
            nonlocal last
            if progress.step != last:
                last = progress.step
                terminal.notice(f"{name}: {last}, {format_seconds(progress.left_s)} left")

        yield say
        return
    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[left]} left"),
        TimeElapsedColumn(),
        console=terminal.err,
        transient=True,
    ) as bar:
        task = bar.add_task(name, total=1.0, left="?")

        def draw(progress: Progress) -> None:
            bar.update(
                task,
                completed=progress.part,
                description=f"{name}: {progress.step}",
                left=format_seconds(progress.left_s),
            )

        yield draw
