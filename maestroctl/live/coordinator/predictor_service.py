"""The process with the learned models, as the coordinator has it: on, off, or not installed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from maestroctl.domain.fleet import PredictorSpec
from maestroctl.errors import ConfigError, PredictorError
from maestroctl.live.engine.procfs import read_stat
from maestroctl.live.transport.unix_path import fits_socket
from maestroctl.predict.artifact_facts import ArtifactFacts, read_facts
from maestroctl.predict.client import PredictorClient, is_hung, swap_local
from maestroctl.predict.raw_prediction import local_expert
from maestroctl.predict.service_process import ServiceProcess
from maestroctl.predict.shipped import SHIPPED_DIGEST, SHIPPED_PATH

_EXTRA = ("lightgbm", "numpy")
LOCAL_MODEL = Path("predictor") / "local.mpred"
"""In the data folder: what `maestroctl train --from-history` made of this fleet's own calls."""


class LearnedModels:
    """The predictor process of one coordinator and the way to ask it.

    Args:
        folder: where its socket goes; one in the temporary folder is made when the path is long.

    Attributes:
        client: None = there is no process.
        local: where the model of own history lies, if there is one.
        local_facts: of the one that is asked; None = none is.
        why_off: one line for people when there is none.
    """

    def __init__(self, spec: PredictorSpec, folder: Path) -> None:
        self._spec = spec
        self._folder = folder
        self._temporary: Path | None = None
        self._process: ServiceProcess | None = None
        self.client: PredictorClient | None = None
        self.facts: ArtifactFacts | None = None
        self.local = folder / LOCAL_MODEL
        self.local_facts: ArtifactFacts | None = None
        self.why_off = ""
        self._examination: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process, unless there can be none; it listens some seconds later.

        Raises:
            ConfigError: the artifact of the fleet file is not there, or is another one.
        """
        if not self._spec.enabled:
            self.why_off = "[predictor] enabled is false"
            return
        if not all(_is_there(name) for name in _EXTRA):
            self.why_off = "the extra `maestroctl[predict]` is not installed"
            return
        path = SHIPPED_PATH if self._spec.artifact is None else Path(self._spec.artifact)
        if not path.is_file():
            raise ConfigError(
                f"there is no predictor artifact {path}",
                hint="leave [predictor] artifact out to use the one that ships",
            )
        self.facts = read_facts(path)
        if self._spec.artifact and self._spec.digest not in (None, self.facts.digest):
            raise ConfigError(
                f"the digest of the predictor artifact {path} is {self.facts.digest}, and"
                f" [predictor] digest asks for {self._spec.digest}",
                hint="another file lies there than the one that was meant",
            )
        socket = self._socket()
        digest = SHIPPED_DIGEST if self._spec.artifact is None else self._spec.digest
        self._process = ServiceProcess(socket, path, digest=digest, local=self._find_local())
        self.client = PredictorClient(
            socket, budget_s=self._spec.budget_s, on_silence=self._on_silence
        )
        await self._process.start()

    def _on_silence(self) -> None:
        if self._examination is None or self._examination.done():
            self._examination = asyncio.create_task(self._end_when_hung())

    async def _end_when_hung(self) -> None:
        process = self._process
        if process is not None and process.is_listening and await is_hung(process.socket):
            process.start_again()

    async def swap_local(self) -> None:
        """Ask what lies at `local` from now on; when nothing does, only the trained model.

        A process that does not take it is started again, which takes what lies there then.
        """
        if self._process is None:
            return
        self._process.local = self._find_local()
        try:
            await swap_local(self._process.socket, self._process.local)
        except PredictorError:
            self._process.start_again()

    def _find_local(self) -> Path | None:
        found = self.local.is_file()
        self.local_facts = read_facts(self.local) if found else None
        return self.local.absolute() if found else None

    @property
    def experts(self) -> tuple[str, ...]:
        """Names under which something is learned of how good who speaks is."""
        digest = None if self.local_facts is None else self.local_facts.digest
        return ("profile", "model", *(() if digest is None else (local_expert(digest),)))

    @property
    def state(self) -> str:
        """``running``, ``starting``, ``not_installed`` (or does not load) or ``off``."""
        if self._process is not None and not self._process.gave_up:
            return "running" if self._process.is_listening else "starting"
        return "off" if not self._spec.enabled else "not_installed"

    @property
    def restarts(self) -> int:
        """How often the process had to be started again."""
        return 0 if self._process is None else self._process.restarts

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return None if self._process is None else self._process.pid

    async def close(self) -> None:
        """End the process."""
        if self._examination is not None:
            self._examination.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._examination
        if self.client is not None:
            await self.client.close()
        if self._process is not None:
            await self._process.stop()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _socket(self) -> Path:
        name = f"predictor-{os.getpid()}.sock"
        socket = self._folder.absolute() / name
        if fits_socket(socket):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for stale in self._folder.glob("predictor-*.sock"):
                if not _is_alive(stale):
                    with contextlib.suppress(OSError):
                        stale.unlink()
            return socket
        self._temporary = Path(tempfile.mkdtemp(prefix="maestroctl-"))
        return self._temporary / name


def _is_there(name: str) -> bool:
    """Whether a library can be found; that it also loads is seen in the process alone."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _is_alive(socket: Path) -> bool:
    """Whether the coordinator that the socket is named for may still run."""
    number = socket.stem.partition("-")[2]
    stat = read_stat(int(number)) if number.isdigit() else None
    return stat is not None and stat.is_running and stat.pid != os.getpid()
