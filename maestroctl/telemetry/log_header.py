"""First line of an event log: the start values of the core, without any secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit, urlunsplit

from maestroctl import __version__
from maestroctl.domain.fleet import FleetSpec, NodeSpec
from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.policy import PolicySpec

FORMAT = 1
"""Version of the lines; a reader refuses a higher one."""


@dataclass(frozen=True, slots=True)
class LogHeader:
    """Where a core started.

    Attributes:
        core: ``coordinator`` or ``node``.
        policy: names and weights in force.
        name: of the node; empty for a coordinator.
        fleet: for a coordinator: what it serves, without secrets (`without_secrets`).
        node: for a node daemon: itself.
        profiles: for a node daemon: what its models cost.
        budgets: for a node daemon: bytes per device (``host`` included) at the start.
        epoch: of the coordinator.
        started_at: Unix seconds.
        part: files of this log that came before.
    """

    core: str
    policy: PolicySpec
    name: str = ""
    fleet: FleetSpec | None = None
    node: NodeSpec | None = None
    profiles: tuple[ModelProfile, ...] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0
    started_at: float = 0.0
    part: int = 0
    format: int = FORMAT
    maestroctl: str = __version__


def without_secrets(fleet: FleetSpec) -> FleetSpec:
    """The fleet as far as a core reads it: no environments, arguments, commands or passwords."""
    return replace(
        fleet,
        engines={name: replace(engine, env={}, args=()) for name, engine in fleet.engines.items()},
        models={
            name: replace(
                model,
                engine_args=(),
                command=("...",) if model.command else (),
                url=_bare_url(model.url),
                api_key_file=None,
                profile=None,
            )
            for name, model in fleet.models.items()
        },
        coordinator=replace(fleet.coordinator, state="", api_keys_file=None),
    )


def _bare_url(url: str | None) -> str | None:
    """Without user, password and query, where keys hide."""
    if url is None:
        return None
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
