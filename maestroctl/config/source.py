"""One TOML file: its values, where each came from, and everything that is wrong with it.

Reading goes on after a mistake, so that a person sees all of them at once; `Source.finish` raises
what was collected, in the order of the lines. A value has one of four origins, later ones winning:
the default, the file, the environment, the command line.

See also: `config.tables` (what may be written), `config.fleet` and `config.workflow` (meaning).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path as FilePath
from typing import Any, TypeVar

import tomli

from maestroctl.config.kinds import Mismatch, did_you_mean, show_value
from maestroctl.config.tables import Key, Table
from maestroctl.config.toml_lines import Path, find_lines
from maestroctl.errors import ConfigError, ConfigErrors

MAX_FILE_BYTES = 4 << 20
"""A larger file is not something a person wrote."""

STARTER_HINT = "`maestroctl init` writes a starter"
"""For a fleet file or a workflow that is not there."""

Spec = TypeVar("Spec")

_BARE = re.compile(r"[A-Za-z0-9_-]+")


class OriginKind(StrEnum):
    """Who said a value, weakest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from; `where` is ``FILE:LINE`` or the name of a variable."""

    kind: OriginKind = OriginKind.DEFAULT
    where: str = ""

    def __str__(self) -> str:
        if self.kind is OriginKind.FILE:
            return self.where
        return f"{self.kind} {self.where}".strip()


DEFAULT_ORIGIN = Origin()


def read_text(path: FilePath, *, missing_hint: str | None = None) -> str:
    """Text of a file a user named.

    Args:
        missing_hint: what to try when it is not there.

    Raises:
        ConfigError: it is not there, not readable, not UTF-8 or too large.
    """
    file = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as exc:
        raise ConfigError("there is no such file", file=file, hint=missing_hint) from exc
    except OSError as exc:
        raise ConfigError(f"it cannot be read: {exc.strerror}", file=file) from exc
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"it is larger than {MAX_FILE_BYTES >> 20} MiB", file=file)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise ConfigError(
            "it is not UTF-8 text", file=file, line=line, hint="save it as UTF-8"
        ) from exc


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """Values of a TOML document.

    Raises:
        ConfigError: with the line, when the text is not TOML.
    """
    try:
        return tomli.loads(text.replace("\r\n", "\n"))
    except tomli.TOMLDecodeError as exc:
        raise ConfigError(
            f"not valid TOML: {exc.msg} (column {exc.colno})", file=file, line=exc.lineno
        ) from exc
    except RecursionError as exc:
        raise ConfigError("not valid TOML: nested too deeply", file=file) from exc


def format_path(path: Sequence[str | int]) -> str:
    """``("model", 1, "name")`` as ``model[1].name``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            shown = part if _BARE.fullmatch(part) else show_value(part)
            text += f".{shown}" if text else shown
    return text


class Source:
    """A document under validation.

    Args:
        values: what `tomli` gave; copied, because overrides are merged into it.
        file: as the user named it; used in every message.
        text: the document, for line numbers; None when there is no file.
    """

    def __init__(self, values: Mapping[str, Any], *, file: str | None, text: str | None) -> None:
        self.file = file
        self.values: dict[str, Any] = copy.deepcopy(dict(values))
        self.errors: list[ConfigError] = []
        self._lines = find_lines(text) if text is not None else {}
        self._set: dict[Path, Origin] = {}
        """Paths set from outside the file."""

    @classmethod
    def parse(cls, text: str, file: str) -> Source:
        """A source of TOML text; raises `ConfigError` when it is not TOML."""
        values = parse_toml(text, file)
        return cls(values, file=file, text=text.replace("\r\n", "\n"))

    # --- where ---

    def line(self, path: Path) -> int | None:
        """Line of a path, or of the nearest table around it."""
        while path:
            if path in self._lines:
                return self._lines[path]
            path = path[:-1]
        return None

    def origin(self, path: Path) -> Origin:
        """Where the value at `path` came from; the default when nobody wrote it."""
        if path in self._set:
            return self._set[path]
        if self.file is not None and path in self._lines:
            return Origin(OriginKind.FILE, f"{self.file}:{self._lines[path]}")
        return DEFAULT_ORIGIN

    def override(self, path: Path, value: Any, origin: Origin) -> None:
        """Set a value from the environment or the command line."""
        table = self.values
        for depth, part in enumerate(path[:-1]):
            inner = table.setdefault(str(part), {})
            if not isinstance(inner, dict):
                found = format_path(path[: depth + 1])
                self.problem(path, f"{found} is not a table that can be set this way")
                return
            table = inner
        table[str(path[-1])] = value
        self._set[path] = origin

    # --- what is wrong ---

    def problem(
        self,
        path: Path,
        message: str,
        *,
        hint: str | None = None,
        found: str | None = None,
        expected: str | None = None,
    ) -> None:
        """Remember one mistake."""
        outside = self._set.get(path)
        self.errors.append(
            ConfigError(
                message,
                file=str(outside) if outside is not None else self.file,
                key=format_path(path) or None,
                line=None if outside is not None else self.line(path),
                hint=hint,
                found=found,
                expected=expected,
            )
        )

    def finish(self) -> None:
        """Raise everything that was found, in the order of the lines.

        Raises:
            ConfigErrors: at least one mistake was found.
        """
        if self.errors:
            raise ConfigErrors(sorted(self.errors, key=lambda error: error.line or 0))

    # --- reading ---

    def at(self, path: Path) -> Any:
        """The raw value at `path`; None when it is absent."""
        value: Any = self.values
        for part in path:
            if isinstance(value, dict) and isinstance(part, str):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int):
                value = value[part]
            else:
                return None
        return value

    def known_keys(self, path: Path, known: Sequence[str]) -> None:
        """Refuse keys of the table at `path` that nobody reads."""
        value = self.at(path)
        if not isinstance(value, dict):
            return
        for name in value:
            if name not in known:
                what = "table" if isinstance(value[name], (dict, list)) and not path else "key"
                self.problem(
                    (*path, name), f"unknown {what} {name!r}", hint=did_you_mean(name, known)
                )

    def tables(self, name: str) -> list[Path]:
        """Paths of the elements of ``[[name]]``; a mistake when it is something else."""
        value = self.at((name,))
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self._wrong((name,), value, f"a list of tables, each under [[{name}]]")
            return []
        return [(name, index) for index in range(len(value))]

    def is_table(self, path: Path) -> bool:
        """There is a table at `path`; a mistake when there is something else."""
        value = self.at(path)
        if value is not None and not isinstance(value, dict):
            self._wrong(path, value, f"a table, under [{format_path(path)}]")
        return isinstance(value, dict)

    def read(self, table: Table, path: Path) -> dict[str, Any]:
        """Parsed fields of the table at `path`: only what was written, and only what is right."""
        self.known_keys(path, table.names)
        raw = self.at(path) or {}
        fields: dict[str, Any] = {}
        for key in table.keys:
            if key.name in raw:
                self._read_key(key, (*path, key.name), raw[key.name], fields)
            elif key.required:
                self.problem(path, f"{key.name} is missing", expected=key.kind.label)
        return fields

    def _read_key(self, key: Key, path: Path, raw: Any, fields: dict[str, Any]) -> None:
        found = "a value" if key.kind.secret else show_value(raw)
        try:
            fields[key.target] = key.kind.parse(raw)
        except (ValueError, RecursionError) as exc:
            reason = f": {exc}" if str(exc) else ""
            self.problem(
                path,
                f"expected {key.kind.label}, found {found}{reason}",
                hint=exc.hint if isinstance(exc, Mismatch) else None,
                found=found,
                expected=key.kind.label,
            )

    def build(self, spec: type[Spec], path: Path, fields: Mapping[str, Any]) -> Spec | None:
        """The spec of a table, or None (and a mistake) when its fields contradict each other."""
        if any(error.key and _inside(error.key, format_path(path)) for error in self.errors):
            return None
        try:
            return spec(**fields)
        except ValueError as exc:
            self.problem(path, str(exc))
            return None

    def _wrong(self, path: Path, value: Any, expected: str) -> None:
        found = show_value(value)
        self.problem(path, f"expected {expected}, found {found}", found=found, expected=expected)


def _inside(key: str, table: str) -> bool:
    return key == table or key.startswith((f"{table}.", f"{table}["))
