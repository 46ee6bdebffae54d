"""Offline checks of what a user wrote: which kind of file it is, and everything wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maestroctl.cli import fleet_source
from maestroctl.config.file_kind import FileKind, kind_of
from maestroctl.config.source import STARTER_HINT, parse_toml, read_text
from maestroctl.config.workflow import load_workflow
from maestroctl.domain.fleet import FleetSpec
from maestroctl.errors import ConfigError, ConfigErrors


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What was found in one file.

    Attributes:
        kind: None when it could not be read.
        errors: in the order of its lines.
    """

    file: str
    kind: FileKind | None
    errors: tuple[ConfigError, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "file": self.file,
            "kind": self.kind,
            "ok": not self.errors,
            "errors": [
                {
                    "line": error.line,
                    "key": error.key,
                    "message": error.message,
                    "found": error.found,
                    "expected": error.expected,
                    "hint": error.hint,
                }
                for error in self.errors
            ],
        }


def check_files(files: Iterable[Path], fleet_file: Path | None = None) -> list[CheckedFile]:
    """Check fleet and workflow files; workflows against the fleet, where one is known.

    Args:
        files: told apart by what stands in them.
        fleet_file: fleet for the workflows; None = the one good fleet file among `files`, if any.
    """
    paths = [*files, *([fleet_file] if fleet_file is not None else [])]
    kinds = {path: _kind_or_error(path) for path in dict.fromkeys(paths)}
    checked: dict[Path, CheckedFile] = {}
    fleets: list[FleetSpec] = []
    for path, kind in kinds.items():
        if kind is FileKind.FLEET:
            checked[path], fleet = _check_fleet(path)
            if fleet is not None and fleet_file in (None, path):
                fleets.append(fleet)
        elif isinstance(kind, ConfigError):
            checked[path] = CheckedFile(str(path), None, (kind,))
    against = fleets[0] if len(fleets) == 1 else None
    for path, kind in kinds.items():
        if kind is FileKind.WORKFLOW:
            checked[path] = _check_workflow(path, against)
    return [checked[path] for path in kinds]


def recognise(document: dict[str, Any], file: str) -> FileKind:
    """Whether a document is a fleet file or a workflow.

    Raises:
        ConfigError: it is neither.
    """
    kind = kind_of(document)
    if kind not in (FileKind.FLEET, FileKind.WORKFLOW):
        found = f"it is a {kind} file" if kind else "it is neither a fleet file nor a workflow"
        raise ConfigError(
            found,
            file=file,
            hint="a fleet file has [[model]], a workflow has [workflow] and [[step]]",
        )
    return kind


def _kind_or_error(path: Path) -> FileKind | ConfigError:
    try:
        text = read_text(path, missing_hint=STARTER_HINT)
        return recognise(parse_toml(text, str(path)), str(path))
    except ConfigError as exc:
        return exc


def _check_fleet(path: Path) -> tuple[CheckedFile, FleetSpec | None]:
    try:
        fleet = fleet_source.load(path).spec
    except ConfigErrors as exc:
        return CheckedFile(str(path), FileKind.FLEET, exc.errors), None
    return CheckedFile(str(path), FileKind.FLEET, ()), fleet


def _check_workflow(path: Path, fleet: FleetSpec | None) -> CheckedFile:
    try:
        load_workflow(path, fleet)
    except ConfigErrors as exc:
        return CheckedFile(str(path), FileKind.WORKFLOW, exc.errors)
    return CheckedFile(str(path), FileKind.WORKFLOW, ())
