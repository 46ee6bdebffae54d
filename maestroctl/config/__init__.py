"""TOML to domain: everything a user writes, checked, with the place of every mistake.

``fleet.py`` and ``workflow.py`` read the two files; ``*_tables.py`` declare what may stand in them
(also the source of ``docs/configuration.md``); ``templates.py`` and ``expressions.py`` are the
sandbox for what workflow files compute.
"""

from maestroctl.config.effective import EffectiveValue, effective_values
from maestroctl.config.fleet import LoadedFleet, default_fleet, load_fleet, parse_fleet
from maestroctl.config.home import home_dir
from maestroctl.config.workflow import (
    load_workflow,
    parse_workflow,
    workflow_document,
    workflow_from_document,
)

__all__ = [
    "EffectiveValue",
    "LoadedFleet",
    "default_fleet",
    "effective_values",
    "home_dir",
    "load_fleet",
    "load_workflow",
    "parse_fleet",
    "parse_workflow",
    "workflow_document",
    "workflow_from_document",
]
