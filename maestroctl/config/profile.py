"""``profiles/<device>/<model>.toml`` to a `ProfileRecord`.

Read like the other files: every mistake with its line and a hint. `serve` and the simulator read
the same files.

See also: `config.profile_tables` (keys), `config.profile_writer` (the way back),
`config.profile_store` (which file belongs to a model).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maestroctl.config import profile_tables as schema
from maestroctl.config.file_kind import FileKind, refuse_other_kind
from maestroctl.config.source import Source, read_text
from maestroctl.config.tables import Table
from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import IterationCost, KvGeometry, ModelProfile
from maestroctl.domain.profile import (
    DecodePoint,
    FitQuality,
    PrefillPoint,
    ProfileCheck,
    ProfiledEngine,
    ProfileRecord,
)


def load_profile(path: Path) -> ProfileRecord:
    """Read a profile file.

    Raises:
        ConfigError: every mistake of the file (`ConfigErrors`), or it cannot be read.
    """
    return parse_profile(read_text(path), str(path))


def parse_profile(text: str, file: str = "profile.toml") -> ProfileRecord:
    """The same for text.

    Raises:
        ConfigError: it is not TOML; `ConfigErrors`: every mistake.
    """
    source = Source.parse(text, file)
    refuse_other_kind(source.values, FileKind.PROFILE, file)
    source.known_keys((), schema.TOP_LEVEL)
    tables = {_name(table): _single(source, table) for table in schema.SINGLE_TABLES}
    lists = {
        _name(table): [source.read(table, path) for path in source.tables(_name(table))]
        for table in schema.LIST_TABLES
    }
    found = tables["profile"].get("schema", schema.SCHEMA)
    if found > schema.SCHEMA:
        source.problem(
            ("profile", "schema"),
            f"the file has form {found}, this version reads up to {schema.SCHEMA}",
            hint="a newer maestroctl wrote it; measure again with this one",
        )
    source.finish()
    record = _build(source, tables, lists)
    source.finish()
    assert record is not None
    return record


def _name(table: Table) -> str:
    return table.header.strip("[]")


def _single(source: Source, table: Table) -> dict[str, Any]:
    name = _name(table)
    if source.at((name,)) is None:
        if name not in schema.OPTIONAL:
            source.problem((), f"[{name}] is missing", hint="`maestroctl profile` writes it")
        return {}
    return source.read(table, (name,)) if source.is_table((name,)) else {}


def _build(
    source: Source, tables: dict[str, dict[str, Any]], lists: dict[str, list[dict[str, Any]]]
) -> ProfileRecord | None:
    try:
        return _record(tables, lists)
    except ValueError as exc:
        source.problem((), str(exc))
        return None


def _record(
    tables: dict[str, dict[str, Any]], lists: dict[str, list[dict[str, Any]]]
) -> ProfileRecord:
    meta, device, iteration = tables["profile"], tables["device"], tables["iteration"]
    origin, made_at = str(meta["origin"]), meta.get("made_at", "")
    fit, check = tables["fit"], tables["check"]
    return ProfileRecord(
        costs=_costs(ModelName(meta["model"]), origin, tables),
        geometry=_geometry(tables["kv"]),
        device=device["name"],
        device_kind=str(device["kind"]),
        engine=ProfiledEngine(**tables["engine"]),
        source=str(meta.get("source", "")),
        made_at=made_at,
        maestroctl=meta.get("maestroctl", ""),
        missing=meta.get("missing", ()),
        num_blocks=tables["kv"].get("num_blocks", 0),
        gamma_measured=iteration.get("gamma_measured", False),
        saturated=iteration.get("saturated", False),
        decode=tuple(DecodePoint(**fields) for fields in lists["decode"]),
        prefill=tuple(PrefillPoint(**fields) for fields in lists["prefill"]),
        fit=FitQuality(**fit) if fit else None,
        check=ProfileCheck(**check) if check else None,
    )


def _costs(model: ModelName, origin: str, tables: dict[str, dict[str, Any]]) -> ModelProfile:
    memory, kv, iteration = tables["memory"], tables["kv"], tables["iteration"]
    cost = IterationCost(*(iteration[name] for name in ("c0_s", "c1_s", "c2_s", "cp_s", "gamma")))
    return ModelProfile(
        model=model,
        weights_bytes=memory["weights"],
        context_bytes=memory["context"],
        peak_bytes=memory["peak"],
        start_peak_bytes=memory["start_peak"],
        host_asleep_bytes=memory["host_asleep"],
        kv_bytes_per_token=kv["bytes_per_token"],
        kv_pool_bytes=kv["pool"],
        kv_least_bytes=kv["least"],
        block_tokens=kv["block_tokens"],
        max_model_len=kv["max_model_len"],
        max_batch=iteration["max_batch"],
        cold_start_s=tables["activation"]["cold_start_s"],
        wake_s=tables["activation"]["wake_s"],
        sleep_s=tables["activation"]["sleep_s"],
        iteration=cost,
        origin=origin,
    )


def _geometry(kv: dict[str, Any]) -> KvGeometry:
    return KvGeometry(
        num_layers=kv["layers"],
        num_kv_heads=kv["heads"],
        head_dim=kv["head_dim"],
        bytes_per_element=kv["bytes_per_element"],
        block_tokens=kv["block_tokens"],
        sliding_window=kv.get("sliding_window"),
        num_sliding_layers=kv.get("sliding_layers", 0),
        latent_dim=kv.get("latent_dim"),
    )
