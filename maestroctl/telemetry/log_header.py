"""First line of an event log: the start values of the core, without any secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit, urlunsplit

from maestroctl import __version__
from maestroctl.domain.engine import EngineAbilities
from maestroctl.domain.fleet import FleetSpec, NodeSpec
from maestroctl.domain.ids import DeviceName, ModelName
from maestroctl.domain.llm import (
    HttpAction,
    ModelProfile,
    ModelSource,
    ModelSpec,
    SourceScheme,
)
from maestroctl.domain.policy import PolicySpec

FORMAT = 2
"""Version of the lines and of what the header says; a reader refuses every other one.

To be raised when a core takes start values that the header does not hold, or when a field of an
event means something else. A new field with a default that means "as before" needs no new format.
"""

_HIDDEN = HttpAction("POST", "...")
"""That there is one is all a core reads."""


@dataclass(frozen=True, slots=True)
class LogHeader:
    """Where a core started.

    Attributes:
        core: ``coordinator`` or ``node``; `maestroctl.replay` builds one from the rest.
        policy: names and weights in force.
        name: of the node; empty for a coordinator.
        fleet: for a coordinator: what it serves, without secrets (`without_secrets`).
        node: for a node daemon: itself.
        max_queued: for a coordinator: stages that may wait in it.
        models: for a node daemon: what it may run, without secrets.
        profiles: for a node daemon: what its models cost.
        abilities: for a node daemon: what the engine of each model can do.
        unavailable: for a node daemon: models that cannot run there, with the reason.
        budgets: for a node daemon: bytes per device (``host`` included) at the start.
        unnamed: parts of the core that were handed to it as objects (an experiment's policy), and
            so cannot be built again from this header.
        epoch: of the coordinator.
        started_at: Unix seconds.
        part: files of this log that came before.
    """

    core: str
    policy: PolicySpec
    name: str = ""
    fleet: FleetSpec | None = None
    max_queued: int = 100_000
    node: NodeSpec | None = None
    models: tuple[ModelSpec, ...] = ()
    profiles: tuple[ModelProfile, ...] = ()
    abilities: Mapping[ModelName, EngineAbilities] = field(default_factory=dict)
    unavailable: Mapping[ModelName, str] = field(default_factory=dict)
    budgets: Mapping[DeviceName, int] = field(default_factory=dict)
    unnamed: tuple[str, ...] = ()
    epoch: int = 0
    started_at: float = 0.0
    part: int = 0
    format: int = FORMAT
    maestroctl: str = __version__

    @property
    def file_name(self) -> str:
        """Of the log's newest part; names of nodes may hold slashes, but never a tilde."""
        if self.core == "coordinator":
            return "coordinator.jsonl"
        return f"{self.core}-{self.name.replace('/', '~')}.jsonl"


def without_secrets(fleet: FleetSpec) -> FleetSpec:
    """The fleet as far as a core reads it: no environments, arguments, commands, passwords.

    Folders of this machine are left out as well, so that a log can be handed to somebody else.
    """
    return replace(
        fleet,
        engines={
            name: replace(engine, env={}, args=(), python="auto")
            for name, engine in fleet.engines.items()
        },
        models={name: model_without_secrets(model) for name, model in fleet.models.items()},
        coordinator=replace(fleet.coordinator, state="", api_keys_file=None),
        event_log=replace(fleet.event_log, folder=""),
    )


def model_without_secrets(model: ModelSpec) -> ModelSpec:
    """The same for one model."""
    return replace(
        model,
        source=_bare_source(model.source),
        engine_args=(),
        command=("...",) if model.command else (),
        sleep_action=_HIDDEN if model.sleep_action else None,
        wake_action=_HIDDEN if model.wake_action else None,
        url=_bare_url(model.url),
        api_key_file=None,
        profile=None,
    )


def _bare_source(source: ModelSource | None) -> ModelSource | None:
    """A folder by its name alone."""
    if source is None or source.scheme is not SourceScheme.PATH:
        return source
    return replace(source, reference=source.reference.rstrip("/").rpartition("/")[2] or "model")


def _bare_url(url: str | None) -> str | None:
    """Without user, password and query, where keys hide."""
    if url is None:
        return None
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
