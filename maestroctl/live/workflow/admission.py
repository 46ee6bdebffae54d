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


def check_request(request: JobRequest, fleet: FleetSpec) -> None:
    """Refuse a run that could not end well.

    Raises:
        ConfigErrors: everything that is wrong with it.
    """
    workflow_from_document(workflow_document(request.workflow), fleet=fleet)
    errors = []
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
