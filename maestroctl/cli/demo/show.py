"""The demo as a command: what it needs, the screen, the report, and the last sweep."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from maestroctl.cli.context import terminal
from maestroctl.cli.demo import report
from maestroctl.cli.demo.engine_watch import EngineWatch
from maestroctl.cli.demo.family import ProcessFamily
from maestroctl.cli.demo.plan import MODEL_NAMES, SOURCE, DemoPlan, make_plan
from maestroctl.cli.demo.run import DemoResult, run_demo
from maestroctl.cli.demo.screen import DemoScreen
from maestroctl.cli.exit_codes import ExitCode
from maestroctl.cli.live_view import View, make_view
from maestroctl.cli.runtime import run_async
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSource
from maestroctl.errors import EngineError
from maestroctl.live import engine_envs, gpu
from maestroctl.live.models.sources import PreparedModel, prepare_model

_PREFIX = "maestroctl-demo-"
_OWNER = "owner.pid"
_LONGEST_DIR = 19
"""Characters; the kernel allows 107 for a socket, of which the demo's folders and the names of the
sockets between an engine's processes take 88."""
_STALE_S = 120.0
"""A folder whose demo was killed is removed after this; its daemon has ended by then."""


@dataclass(frozen=True, slots=True)
class DemoBase:
    """What the models run on.

    Attributes:
        engine: its environment is there.
        version: for people.
        free_bytes: free memory to reckon with; None = what is read.
    """

    engine: EngineSpec
    prepared: PreparedModel
    version: str
    free_bytes: int | None = None


def show_demo(*, as_json: bool, base: DemoBase | None = None) -> ExitCode:
    """Run the demo on this machine.

    Args:
        as_json: print one document at the end, progress on standard error.
        base: what to run on; None = the engine that `install.sh` made.

    Raises:
        MaestroError: something is missing, or failed.
        KeyboardInterrupt: it was interrupted; nothing is left.
    """
    _remove_stale()
    base = base or _find_base()
    device = gpu.read_gpus()[:1] if base.engine.kind is EngineKind.VLLM else []
    reading = device[0] if device else gpu.read_cpu()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_temporary_dir()))
    (folder / _OWNER).write_text(str(os.getpid()))
    family = ProcessFamily()
    try:
        plan = make_plan(
            base.engine,
            base.prepared,
            folder,
            free_bytes=base.free_bytes or reading.free_bytes,
        )
        console = terminal.err if as_json else terminal.out
        console.print(report.introduction(plan, base.version, reading.description), markup=False)
        # A second Ctrl-C kills the engines; what waits for them to stop then ends by itself.
        result = run_async(_run(plan, folder, family, as_json=as_json), on_second=family.kill_now)
    finally:
        family.kill()
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        terminal.json(report.result_document(result))
    else:
        report.print_report(terminal.out, result)
    return ExitCode.OK


async def _run(plan: DemoPlan, folder: Path, family: ProcessFamily, *, as_json: bool) -> DemoResult:
    engines = EngineWatch.of(MODEL_NAMES)
    screen = DemoScreen(time.monotonic, engines, started_s=time.monotonic())
    console = terminal.err if as_json else terminal.out
    view: View = make_view(console, screen.draw)
    with view:
        try:
            return await run_demo(plan, folder, family, screen, view)
        except asyncio.CancelledError:
            view.notice("Interrupted: everything is stopped.")
            raise


def _find_base() -> DemoBase:
    """The engine environment of this machine and the model, fetched if it is not there."""
    kind = EngineKind.VLLM if gpu.read_gpus() else EngineKind.VLLM_CPU
    engine = EngineSpec("default", kind)

    async def look() -> DemoBase:
        found = await engine_envs.describe_environment(engine)
        if not found.is_usable or found.facts is None:
            raise EngineError(
                f"the demo needs the engine environment {kind}: {found.problem}",
                hint="./install.sh makes it; `maestroctl doctor` says what else is missing",
            )
        with terminal.working(f"the model: {SOURCE}") as status:
            prepared = await prepare_model(
                ModelSource.parse(SOURCE), engine, progress=lambda text: status.update(text)
            )
        facts = found.facts
        return DemoBase(engine, prepared, f"{facts.distribution} {facts.vllm_version}")

    return run_async(look())


def _temporary_dir() -> Path:
    """Where folders of demos lie: a Unix socket below must not get too long a path."""
    usual = Path(tempfile.gettempdir())
    return usual if len(os.fsencode(usual)) <= _LONGEST_DIR else Path("/tmp")


def _remove_stale() -> None:
    """Remove folders of demos that were killed outright."""
    for folder in _temporary_dir().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            stat = folder.stat()
            if stat.st_uid != os.getuid() or time.time() - stat.st_mtime < _STALE_S:
                continue
            if not psutil.pid_exists(int((folder / _OWNER).read_text())):
                shutil.rmtree(folder, ignore_errors=True)
