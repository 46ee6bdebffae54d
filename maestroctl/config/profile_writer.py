"""A `ProfileRecord` to TOML that a person reads and edits; `config.profile` reads it back the same.

Sizes are whole bytes and times are seconds, so that nothing is lost to rounding; the comment
beside them says the same for people.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from maestroctl.config.profile_tables import SCHEMA
from maestroctl.config.whole_file import write_whole
from maestroctl.domain.profile import ProfileRecord
from maestroctl.domain.units import format_bytes
from maestroctl.errors import ConfigError

Comments = Mapping[str, str]
"""Text behind a key, by ``table.key``; ``""`` is the head of the file."""

_HEAD = """\
Costs of one model on one device, written by `maestroctl profile`.
`serve` and the simulator read them; edit what you know better."""


def format_profile(record: ProfileRecord, comments: Comments | None = None) -> str:
    """The file.

    Args:
        record: what to write.
        comments: in place of those that are made here.
    """
    said = {**_comments(record), **(comments or {})}
    lines = [f"# {line}".rstrip() for line in said.get("", _HEAD).splitlines()]
    for name, fields in _tables(record):
        lines += ["", f"[{name}]"]
        lines += _lines(name, fields, said)
    for name, points in (("decode", record.decode), ("prefill", record.prefill)):
        for point in points:
            fields = {key: getattr(point, key) for key in point.__slots__}
            lines += ["", f"[[{name}]]"]
            lines += _lines("", fields, {".seconds": f"{point.seconds * 1000:.1f} ms"})
    return "\n".join(lines) + "\n"


def save_profile(path: Path, record: ProfileRecord) -> None:
    """Write the file as a whole or not at all; its folder is made.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        write_whole(path, format_profile(record))
    except OSError as exc:
        raise ConfigError(
            f"the profile cannot be written: {exc.strerror}",
            file=str(path),
            hint="--out names another folder",
        ) from exc


def _tables(record: ProfileRecord) -> Iterable[tuple[str, dict[str, Any]]]:
    costs, shape, engine = record.costs, record.geometry, record.engine
    yield (
        "profile",
        {
            "schema": SCHEMA,
            "model": costs.model,
            "source": record.source,
            "origin": costs.origin,
            "made_at": record.made_at,
            "maestroctl": record.maestroctl,
            "missing": record.missing,
        },
    )
    yield "device", {"name": record.device, "kind": record.device_kind}
    yield "engine", {key: getattr(engine, key) for key in engine.__slots__}
    yield (
        "memory",
        {
            "weights": costs.weights_bytes,
            "context": costs.context_bytes,
            "peak": costs.peak_bytes,
            "start_peak": costs.start_peak_bytes,
            "host_asleep": costs.host_asleep_bytes,
        },
    )
    yield (
        "kv",
        {
            "bytes_per_token": costs.kv_bytes_per_token,
            "block_tokens": costs.block_tokens,
            "pool": costs.kv_pool_bytes,
            "least": costs.kv_least_bytes,
            "num_blocks": record.num_blocks,
            "max_model_len": costs.max_model_len,
            "layers": shape.num_layers,
            "heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "bytes_per_element": shape.bytes_per_element,
            "sliding_window": shape.sliding_window,
            "sliding_layers": shape.num_sliding_layers,
            "latent_dim": shape.latent_dim,
        },
    )
    yield "activation", {key: getattr(costs, key) for key in ("cold_start_s", "wake_s", "sleep_s")}
    iteration = {key: getattr(costs.iteration, key) for key in costs.iteration.__slots__}
    yield (
        "iteration",
        {
            **iteration,
            "gamma_measured": record.gamma_measured,
            "max_batch": costs.max_batch,
            "saturated": record.saturated,
        },
    )
    for name, part in (("fit", record.fit), ("check", record.check)):
        if part is not None:
            yield name, {key: getattr(part, key) for key in part.__slots__}


def _lines(table: str, fields: Mapping[str, Any], comments: Comments) -> Iterable[str]:
    for key, value in fields.items():
        if value is None or value == "" or value == ():
            continue
        comment = comments.get(f"{table}.{key}", "")
        yield f"{key} = {_format(value)}" + (f"  # {comment}" if comment else "")


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_format(item) for item in value) + "]"
    if isinstance(value, str):
        # JSON strings are TOML strings, but for the one control character JSON leaves alone.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _comments(record: ProfileRecord) -> dict[str, str]:
    costs, cost = record.costs, record.costs.iteration
    sizes = {
        "memory.weights": costs.weights_bytes,
        "memory.context": costs.context_bytes,
        "memory.peak": costs.peak_bytes,
        "memory.start_peak": costs.start_peak_bytes,
        "memory.host_asleep": costs.host_asleep_bytes,
        "kv.pool": costs.kv_pool_bytes,
        "kv.least": costs.kv_least_bytes,
    }
    times = {
        "iteration.c0_s": (cost.c0_s, "per iteration"),
        "iteration.c1_s": (cost.c1_s, "per decoding sequence"),
        "iteration.c2_s": (cost.c2_s, "per token in KV"),
        "iteration.cp_s": (cost.cp_s, "per prompt token"),
    }
    gamma = "measured" if record.gamma_measured else "assumed, not measured"
    return {
        **{key: format_bytes(value) for key, value in sizes.items()},
        **{key: f"{value * 1000:.4g} ms {what}" for key, (value, what) in times.items()},
        "iteration.gamma": f"{gamma}: slow-down beside another engine that works",
    }
