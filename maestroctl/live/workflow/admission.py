"""Whether a workflow run may begin: the last check before anything starts.

A request may come from a file that ``config validate`` has seen, or as JSON from anybody; both go
through the same checks as a file, and then against what only the request itself says.
"""

from __future__ import annotations

from maestroctl.config.kinds import did_you_mean
from maestroctl.config.workflow import needs_input, workflow_document, workflow_from_document
from maestroctl.domain.fleet import FleetSpec
from maestroctl.errors import ConfigError, ConfigErrors
from maestroctl.gateway.submit import JobRequest


def check_request(request: JobRequest, fleet: FleetSpec | None = None) -> None:
    """Refuse a run that could not end well.

    Args:
        request: from anybody; nothing of it is trusted.
        fleet: checks models and tools against it; None = the caller does.

    Raises:
        ConfigErrors: everything that is wrong with it.
    """
    errors = _misnamed(request)
    if errors:
        raise ConfigErrors(errors)
    workflow_from_document(workflow_document(request.workflow), fleet=fleet)
    for name in request.variables:
        if name not in request.workflow.variables:
            hint = did_you_mean(name, sorted(request.workflow.variables))
            errors.append(
                ConfigError(
                    f"workflow {request.workflow.name!r} has no variable {name!r}",
                    key=f"variables.{name}",
                    hint=hint or "declare it under [variables] of the workflow",
                )
            )
    if request.input is None and needs_input(request.workflow):
        errors.append(
            ConfigError(
                f"workflow {request.workflow.name!r} needs an input",
                key="input",
                hint="maestroctl submit WORKFLOW --input TEXT",
            )
        )
    if errors:
        raise ConfigErrors(errors)


def _misnamed(request: JobRequest) -> list[ConfigError]:
    """Parts filed under another name than their own, which no file can say but JSON can."""
    named = [("steps", key, step.name) for key, step in request.workflow.steps.items()]
    named += [("tools", key, tool.name) for key, tool in request.workflow.tools.items()]
    return [
        ConfigError(f"it is filed under {key!r}, but its name is {name!r}", key=f"{kind}.{key}")
        for kind, key, name in named
        if key != name
    ]
