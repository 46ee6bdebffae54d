"""The coordinator in the foreground: start, serve until told to stop, drain, stop."""

from __future__ import annotations

import asyncio
import signal

from rich.text import Text

from maestroctl.cli.context import terminal
from maestroctl.cli.exit_codes import ExitCode
from maestroctl.cli.wiring import Coordinator, CoordinatorOptions
from maestroctl.domain.fleet import FleetSpec
from maestroctl.live.garbage import Tidy, calm

_TIDY_EVERY_S = 10.0


async def run_foreground(fleet: FleetSpec) -> ExitCode:
    """Start, serve until told to stop, stop.

    Raises:
        MaestroError: it could not start, or had to stop on a bug.
    """
    stops = StopSignals()
    options = CoordinatorOptions(debug=terminal.debug, notify=terminal.notice)
    coordinator = Coordinator(fleet, options)
    with terminal.working("Starting the coordinator"):
        await coordinator.start()
    calm()
    tidying = asyncio.create_task(_tidy(coordinator))
    try:
        where = Text(f"{coordinator.url}/v1", style="bold")
        terminal.err.print(Text(f"Serving {_models(fleet)} at ").append_text(where))
        terminal.err.print("Ctrl-C drains and stops; a second one stops at once.", style="dim")
        await _first_of(stops.wait(1), coordinator.failed)
        if not coordinator.failed.done():
            with terminal.working("Draining: open requests finish; Ctrl-C stops now"):
                drained = coordinator.drain(fleet.coordinator.drain_timeout_s)
                await _first_of(drained, stops.wait(2))
    finally:
        tidying.cancel()
        with terminal.working("Stopping the engines"):
            await coordinator.stop()
    if coordinator.failed.done():
        coordinator.failed.result()
    return ExitCode.OK


async def _tidy(coordinator: Coordinator) -> None:
    """Have garbage walked while there is little else."""
    core = coordinator.host.core
    tidy = Tidy(lambda: core.num_queued + core.num_in_flight)
    while True:
        await asyncio.sleep(_TIDY_EVERY_S)
        tidy.look()


class StopSignals:
    """Counts SIGINT and SIGTERM."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._note)

    def _note(self) -> None:
        self._count += 1
        self._changed.set()

    async def wait(self, count: int) -> None:
        """Return when that many have come."""
        while self._count < count:
            self._changed.clear()
            await self._changed.wait()


async def _first_of(*works: object) -> None:
    """Return when the first is done; the others are cancelled (a plain future is left alone)."""
    tasks = [asyncio.ensure_future(work) for work in works]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, work in zip(tasks, works, strict=True):
            if task is not work:
                task.cancel()


def _models(fleet: FleetSpec) -> str:
    names = list(fleet.models)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
