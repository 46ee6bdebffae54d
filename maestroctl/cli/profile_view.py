"""How profiles are shown, listed and compared."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from maestroctl.cli.context import terminal
from maestroctl.cli.render import table, titled
from maestroctl.config.kinds import did_you_mean
from maestroctl.config.profile import load_profile
from maestroctl.config.profile_store import device_slug, list_profiles, profile_folders
from maestroctl.domain.llm import EngineKind
from maestroctl.domain.profile import ProfileRecord
from maestroctl.domain.units import format_bytes, format_seconds
from maestroctl.errors import ConfigError
from maestroctl.live import gpu
from maestroctl.live.profile.device import find_device

_SAME = 0.005
"""A relative change below this is none."""


def record_document(record: ProfileRecord) -> dict[str, Any]:
    """The record for JSON."""
    return dataclasses.asdict(record)


def show_list(*, as_json: bool) -> None:
    """Every known profile; a file that cannot be read is said, and hides no other."""
    rows = []
    for path in list_profiles(_folders()):
        try:
            rows.append((path, load_profile(path)))
        except ConfigError as exc:
            terminal.notice(f"Passed over: {exc}")
    if as_json:
        terminal.json(
            [
                {
                    "name": _name(path),
                    "path": str(path),
                    "device": record.device,
                    "model": record.costs.model,
                    "origin": record.costs.origin,
                    "made_at": record.made_at,
                    "median_error": record.check.median_error if record.check else None,
                }
                for path, record in rows
            ]
        )
        return
    for device, group in groupby(rows, key=lambda row: row[0].parent.name):
        terminal.out.print(titled(device, _list_table(group)))


def _list_table(rows: Iterable[tuple[Path, ProfileRecord]]) -> Table:
    costs = (("DECODE MS", "right"), ("PREFILL MS", "right"), ("WEIGHTS", "right"))
    made = table("MODEL", "ORIGIN", *costs, ("ERROR", "right"), "MADE")
    for path, record in rows:
        made.add_row(
            path.stem,
            record.costs.origin,
            f"{record.costs.decode_s * 1000:.1f}",
            f"{record.costs.iteration.cp_s * 1000:.3g}",
            format_bytes(record.costs.weights_bytes),
            f"{record.check.median_error:.1%}" if record.check else "–",
            record.made_at[:10] or "–",
        )
    return made


def show_one(name: str, *, as_json: bool) -> None:
    """One profile."""
    path = find_named(name)
    record = load_profile(path)
    if as_json:
        terminal.json({"path": str(path), **record_document(record)})
        return
    print_record(record)
    terminal.notice(str(path))


def show_diff(first: str, second: str, *, as_json: bool) -> None:
    """Figures of two profiles side by side, and how much the second differs."""
    records = [load_profile(find_named(name)) for name in (first, second)]
    rows = []
    for key, (left, unit) in figures(records[0]).items():
        right = figures(records[1]).get(key, (None, ""))[0]
        change = right / left - 1 if left and right is not None else None
        rows.append((key, left, right, change, unit))
    if as_json:
        terminal.json(
            [{"figure": k, "a": left, "b": right, "change": c} for k, left, right, c, _ in rows]
        )
        return
    # Names may be paths; as headings they would leave no room for the figures.
    terminal.out.print(Text(f"A: {first}\nB: {second}"))
    made = table("FIGURE", ("A", "right"), ("B", "right"), ("CHANGE", "right"))
    for key, left, right, change, unit in rows:
        shown = "–" if change is None else "same" if abs(change) < _SAME else f"{change:+.1%}"
        made.add_row(key, _show(left, unit), _show(right, unit), shown)
    terminal.out.print(made)


def print_record(record: ProfileRecord) -> None:
    """Tables for people."""
    origin = f"{record.costs.origin} {record.made_at[:10]}".rstrip()
    title = f"{record.costs.model} on {record.device} ({origin})"
    made = table("FIGURE", ("VALUE", "right"))
    for key, (value, unit) in figures(record).items():
        made.add_row(key, _show(value, unit))
    terminal.out.print(titled(title, made))
    if record.decode or record.prefill:
        terminal.out.print(_points_table(record))
    if record.missing:
        terminal.notice("Not measured, from geometry: " + ", ".join(record.missing))
    if record.fit is not None:
        terminal.notice(
            f"Fit of {record.fit.num_samples} samples: median residual"
            f" {record.fit.median_error:.1%}, 0.9 quantile {record.fit.p90_error:.1%}."
        )
    if record.check is not None:
        low, high = record.check.batches
        terminal.notice(
            f"Predicted against measured, {record.check.num_stages} stages at batch {low} to"
            f" {high}: median error {record.check.median_error:.1%}, 0.9 quantile"
            f" {record.check.p90_error:.1%}, bias {record.check.bias:+.1%}."
        )


def figures(record: ProfileRecord) -> dict[str, tuple[float | None, str]]:
    """The figures that matter, with their units."""
    costs, cost = record.costs, record.costs.iteration
    found: dict[str, tuple[float | None, str]] = {
        "decode at batch 1": (costs.decode_s * 1000, "ms/token"),
        "c0, iteration": (cost.c0_s * 1e3, "ms"),
        "c1, decoding sequence": (cost.c1_s * 1e3, "ms"),
        "c2, token in KV": (cost.c2_s * 1e6, "us"),
        "cp, prompt token": (cost.cp_s * 1e3, "ms"),
        "gamma, beside another": (cost.gamma, "x"),
        "largest batch": (float(costs.max_batch), ""),
        "weights": (float(costs.weights_bytes), "bytes"),
        "kept while asleep": (float(costs.context_bytes), "bytes"),
        "peak at work": (float(costs.peak_bytes), "bytes"),
        "peak at start": (float(costs.start_peak_bytes), "bytes"),
        "host memory asleep": (float(costs.host_asleep_bytes), "bytes"),
        "KV per token": (float(costs.kv_bytes_per_token), "B"),
        "cold start": (costs.cold_start_s, "seconds"),
        "wake": (costs.wake_s, "seconds"),
        "sleep": (costs.sleep_s, "seconds"),
    }
    if record.check is not None:
        found["median error"] = (record.check.median_error * 100, "%")
    return found


def find_named(name: str) -> Path:
    """The file of a name that a person typed.

    Raises:
        ConfigError: none, or several devices have one.
    """
    if name.endswith(".toml") or Path(name).is_file():
        return Path(name)
    known: dict[str, Path] = {}
    for path in list_profiles(_folders()):
        known.setdefault(_name(path), path)
    if name in known:
        return known[name]
    fitting = {key: path for key, path in known.items() if key.split("/")[1] == name}
    here = {key: path for key, path in fitting.items() if key.split("/")[0] in _devices_here()}
    chosen = here or fitting
    if len(chosen) > 1:
        raise ConfigError(f"{name!r} is several profiles", hint="one of " + ", ".join(chosen))
    if not chosen:
        hint = did_you_mean(name, [*known, *sorted({key.split("/")[1] for key in known})])
        raise ConfigError(f"there is no profile {name!r}", hint=hint)
    return next(iter(chosen.values()))


def _folders() -> tuple[Path, ...]:
    return profile_folders(os.environ)


def _devices_here() -> set[str]:
    names = [reading.description for reading in gpu.read_gpus()]
    return {device_slug(name) for name in [*names, find_device(EngineKind.VLLM_CPU).name]}


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def _points_table(record: ProfileRecord) -> Group:
    columns = (("MS", "right"), ("SPREAD", "right"), ("TIMES", "right"))
    made = table("WHAT", *columns)
    for point in record.decode:
        what = f"decode, batch {point.batch}, {point.context_tokens} tokens each"
        made.add_row(what, *_point_cells(point.seconds, point.spread, point.num_samples))
    for prompt in record.prefill:
        what = f"prefill, {prompt.prompt_tokens} tokens"
        made.add_row(what, *_point_cells(prompt.seconds, prompt.spread, prompt.num_samples))
    return titled("measured", made)


def _point_cells(seconds: float, spread: float, num_samples: int) -> list[str]:
    return [f"{seconds * 1000:.1f}", f"{spread:.1%}", str(num_samples)]


def _show(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "seconds":
        return format_seconds(value)
    shown = f"{value:,.0f}" if value >= 10_000 else f"{value:.4g}"
    return f"{shown} {unit}".strip()
