"""A workflow against a fleet: its models exist there, and its tools are allowed there."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from maestroctl.config.kinds import did_you_mean
from maestroctl.config.source import Source
from maestroctl.config.toml_lines import Path
from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.workflow import StepSpec, ToolSpec


def tool_target(tool: ToolSpec) -> str:
    """What ``[tools] allow`` is matched against: ``module:function`` or the URL."""
    return tool.function or tool.url or ""


def is_tool_allowed(target: str, allow: Iterable[str]) -> bool:
    """Whether a pattern of ``[tools] allow`` covers `target`."""
    return any(fnmatchcase(target, pattern) for pattern in allow)


def public_names(fleet: FleetSpec) -> list[str]:
    """Everything a client may ask for."""
    aliases = [alias for model in fleet.models.values() for alias in model.aliases]
    return [*fleet.models, *aliases, *fleet.groups, "auto"]


def check_against_fleet(
    source: Source,
    steps: list[tuple[Path, StepSpec]],
    tools: list[tuple[Path, ToolSpec]],
    fleet: FleetSpec,
) -> None:
    """Report unknown models and tools that are not allowed. Mistakes are added to `source`."""
    for path, step in steps:
        for index, model in enumerate(step.models):
            if not fleet.resolve(model):
                source.problem(
                    (*path, "models", index),
                    f"unknown model {model!r}",
                    hint=did_you_mean(model, public_names(fleet)),
                    found=model,
                )
    for path, tool in tools:
        target = tool_target(tool)
        if target and not is_tool_allowed(target, fleet.tools.allow):
            key = "function" if tool.function is not None else "url"
            source.problem(
                (*path, key),
                f"the fleet does not allow {target!r}",
                hint=f'add "{target}" to allow under [tools] of the fleet file',
                found=target,
            )
