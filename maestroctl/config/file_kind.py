"""Which kind of TOML file a document is, told by its tables: to refuse the wrong one in one line.

A fleet file given to ``submit`` would otherwise be a workflow with a dozen unknown tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from maestroctl.config import fleet_tables, profile_tables, workflow_tables
from maestroctl.errors import ConfigError


class FileKind(StrEnum):
    """What a file describes."""

    FLEET = "fleet"
    WORKFLOW = "workflow"
    SIMULATION = "simulation"
    PROFILE = "profile"


_SIMULATION = ("run", "policy", "model", "node", "network", "arrivals", "class", "prediction")
_TABLES: Mapping[FileKind, frozenset[str]] = {
    FileKind.FLEET: frozenset(fleet_tables.TOP_LEVEL),
    FileKind.WORKFLOW: frozenset(workflow_tables.TOP_LEVEL),
    FileKind.SIMULATION: frozenset(_SIMULATION),
    FileKind.PROFILE: frozenset(profile_tables.TOP_LEVEL),
}
_USED_BY: Mapping[FileKind, str] = {
    FileKind.FLEET: "`maestroctl serve {file}` serves it",
    FileKind.WORKFLOW: "`maestroctl submit {file}` runs it",
    FileKind.SIMULATION: "`maestroctl simulate {file}` plays it",
    FileKind.PROFILE: "`profile` of a [[model]] names it",
}


def kind_of(document: Mapping[str, Any], wanted: FileKind = FileKind.FLEET) -> FileKind | None:
    """The kind that has most of the tables of `document`; between equals `wanted`, None of none."""
    shared = {kind: len(tables & document.keys()) for kind, tables in _TABLES.items()}
    best = max(shared, key=lambda kind: (shared[kind], kind is wanted))
    return best if shared[best] else None


def refuse_other_kind(document: Mapping[str, Any], wanted: FileKind, file: str) -> None:
    """Say so when the file is plainly of another kind.

    Raises:
        ConfigError: it has more tables of another kind than of `wanted`.
    """
    kind = kind_of(document, wanted)
    if kind not in (None, wanted):
        hint = _USED_BY[kind].format(file=file)
        raise ConfigError(f"this is a {kind} file, not a {wanted} file", file=file, hint=hint)
