"""``maestroctl doctor``: what is missing on this machine, and the command that fixes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.exit_codes import ExitCode
from maestroctl.cli.runtime import JsonOption, UrlOption, run_async

if TYPE_CHECKING:
    from maestroctl.cli.checks.check import Check
    from maestroctl.config.fleet import LoadedFleet


def doctor(
    fleet_file: Annotated[
        Path | None, typer.Argument(help="fleet.toml; without one, this machine is the fleet.")
    ] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look at everything that serving needs: machine, engines, models, folders, port, SSH.

    Changes and starts nothing. Exit code 1 when something needed is missing.
    """
    from maestroctl.cli import fleet_source, render
    from maestroctl.cli.checks.check import Level

    loaded = fleet_source.load(fleet_file)
    with terminal.working("Looking"):
        checks = run_async(_look(loaded, url))
    missing = [check for check in checks if check.level is Level.MISSING]
    if as_json:
        from dataclasses import asdict

        terminal.json({"ok": not missing, "checks": [asdict(check) for check in checks]})
    else:
        terminal.out.print(render.checks_table(checks))
        warned = sum(check.level is Level.WARN for check in checks)
        terminal.notice(f"{len(missing)} missing, {warned} to know, of {len(checks)} checks.")
    if missing:
        raise typer.Exit(ExitCode.FAILED)


async def _look(loaded: LoadedFleet, url: str | None) -> list[Check]:
    from maestroctl.cli.checks import engines, machine, service
    from maestroctl.domain.llm import EngineKind
    from maestroctl.live.engine_envs import data_home

    fleet, home = loaded.spec, data_home()
    kinds = {fleet.engines[model.engine].kind for model in fleet.models.values()}
    is_local = any(node.host is None for node in fleet.nodes.values())
    checks = machine.check_machine(home, needs_gpu=is_local and EngineKind.VLLM in kinds)
    if is_local:
        checks += await engines.check_engines(fleet, home)
        checks += engines.check_models(fleet, home, loaded.file)
    checks += [
        service.check_folder("data folder", home),
        service.check_state(fleet.coordinator),
        service.check_keys(fleet.coordinator),
        service.check_ssh(fleet),
    ]
    return checks + await service.check_coordinator(fleet.coordinator, url)
