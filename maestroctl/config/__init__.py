"""TOML to domain: everything a user writes, checked, with the place of every mistake.

``fleet.py`` and ``workflow.py`` read the two files; ``*_tables.py`` declare what may stand in them
(also the source of ``docs/configuration.md``); ``templates.py`` and ``expressions.py`` are the
sandbox for what workflow files compute.

The names below are imported when they are first used: the sandbox and the schema checker cost a
quarter of a second and some megabytes, which a node daemon and ``--help`` need not pay.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maestroctl.config.effective import EffectiveValue, effective_values
    from maestroctl.config.fleet import LoadedFleet, load_fleet, parse_fleet
    from maestroctl.config.home import home_dir
    from maestroctl.config.workflow import (
        load_workflow,
        parse_workflow,
        workflow_document,
        workflow_from_document,
    )

_HOMES = {
    "EffectiveValue": "effective",
    "LoadedFleet": "fleet",
    "effective_values": "effective",
    "home_dir": "home",
    "load_fleet": "fleet",
    "load_workflow": "workflow",
    "parse_fleet": "fleet",
    "parse_workflow": "workflow",
    "workflow_document": "workflow",
    "workflow_from_document": "workflow",
}

__all__ = [
    "EffectiveValue",
    "LoadedFleet",
    "effective_values",
    "home_dir",
    "load_fleet",
    "load_workflow",
    "parse_fleet",
    "parse_workflow",
    "workflow_document",
    "workflow_from_document",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"maestroctl.config.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
