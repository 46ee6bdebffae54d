"""The predictor process: stage inputs in over a Unix socket, raw figures out, in micro-batches.

``python -m maestroctl.predict.service --socket PATH --artifact FILE``

Theory of operation
-------------------
It keeps no state but the artifact and its window cache, so it may die at any moment: the host
answers from its running profiles and starts another. A frame with ``local`` in place of a stage
names the artifact of a refit to ask from now on (None = none): it is loaded in a thread, and the
batch in hand is answered by the models it began with. One task per connection reads frames into one
queue; one task takes everything that waits as a batch (at most `MAX_BATCH`). Only when the last
batch held several stages does it wait for more, and then `MAX_WAIT_S` at most: a lone stage never
waits. Evaluation runs on the event loop, since this process has nothing else to do.

It ends when its standard input closes, which is when the host that started it is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from maestroctl.errors import MaestroError
from maestroctl.predict.raw_prediction import RawPrediction, local_expert
from maestroctl.predict.service_process import CANNOT_RUN
from maestroctl.predict.stage_input import StageInput
from maestroctl.predict.wire import BrokenFrame, pack_frame, read_frame

MAX_BATCH = 32
MAX_WAIT_S = 0.002
_END_GRACE_S = 1.0


class Answers(Protocol):
    """What the service needs of a model."""

    def predict(self, stages: Sequence[StageInput]) -> list[RawPrediction]:
        """Raw figures per stage."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    number: int
    stage: StageInput
    writer: asyncio.StreamWriter


class PredictorService:
    """Serves models by expert name over one socket.

    Args:
        models: ``model`` always, ``local-DIGEST`` once a refit was swapped in.
        load: expert name and model of a refitted artifact.
    """

    def __init__(
        self, models: dict[str, Answers], load: Callable[[Path], tuple[str, Answers]] | None = None
    ) -> None:
        self._models = models
        self._load = load
        self._loading: set[asyncio.Task[None]] = set()
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self.batches = 0
        self.answered = 0

    async def serve(self, socket: Path) -> None:
        """Listen until cancelled."""
        with contextlib.suppress(FileNotFoundError):
            socket.unlink()
        server = await asyncio.start_unix_server(self._read, path=str(socket))
        os.chmod(socket, 0o600)
        try:
            async with server:
                await self._answer_batches()
        finally:
            with contextlib.suppress(FileNotFoundError):
                socket.unlink()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = await read_frame(reader)
                if "local" in frame:
                    self._spawn(self._swap(frame, writer))
                    continue
                try:
                    stage = StageInput.from_json(frame["stage"])
                    waiting = _Waiting(int(frame["id"]), stage, writer)
                except (KeyError, TypeError, ValueError) as exc:
                    self._reply(writer, {"id": frame.get("id"), "error": repr(exc)})
                    continue
                self._queue.put_nowait(waiting)
        except (asyncio.IncompleteReadError, BrokenFrame, ConnectionError):
            pass
        finally:
            writer.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _swap(self, frame: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Ask the refitted model at a path from now on; one that cannot be read changes nothing."""
        path, kept = frame["local"], {"model": self._models["model"]}
        try:
            if path is not None and self._load is not None:
                name, model = await asyncio.to_thread(self._load, Path(path))
                kept[name] = model
        except Exception as exc:  # whatever the libraries make of a damaged file
            self._reply(writer, {"id": frame.get("id"), "error": str(exc) or repr(exc)})
            return
        self._models = kept
        self._reply(writer, {"id": frame.get("id"), "experts": list(kept)})

    async def _answer_batches(self) -> None:
        crowded = False
        while True:
            batch = [await self._queue.get()]
            if crowded:
                await self._fill(batch)
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            crowded = len(batch) > 1
            self._answer(batch)
            await asyncio.sleep(0)

    async def _fill(self, batch: list[_Waiting]) -> None:
        deadline = asyncio.get_running_loop().time() + MAX_WAIT_S
        while len(batch) < MAX_BATCH:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            try:
                batch.append(await asyncio.wait_for(self._queue.get(), left))
            except TimeoutError:
                return

    def _answer(self, batch: list[_Waiting]) -> None:
        stages = [waiting.stage for waiting in batch]
        try:
            said = {name: model.predict(stages) for name, model in self._models.items()}
        except Exception as exc:  # one stage that a model cannot take must not end the others
            if len(batch) > 1:
                for waiting in batch:
                    self._answer([waiting])
                return
            self._reply(batch[0].writer, {"id": batch[0].number, "error": repr(exc)})
            return
        self.batches += 1
        self.answered += len(batch)
        for place, waiting in enumerate(batch):
            raw = {name: answers[place].to_json() for name, answers in said.items()}
            self._reply(waiting.writer, {"id": waiting.number, "said": raw})

    @staticmethod
    def _reply(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
        if not writer.is_closing():
            writer.write(pack_frame(value))


async def _serve_until_orphaned(service: PredictorService, socket: Path) -> None:
    loop = asyncio.get_running_loop()
    serving = asyncio.create_task(service.serve(socket))
    threading.Thread(target=_end_when_orphaned, args=(loop, serving, socket), daemon=True).start()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def _end_when_orphaned(
    loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None], socket: Path
) -> None:
    """Ends the process when the host is gone, even when the loop hangs in a model."""
    sys.stdin.buffer.read()
    with contextlib.suppress(RuntimeError):  # the loop is closed: it ends by itself
        loop.call_soon_threadsafe(serving.cancel)
    time.sleep(_END_GRACE_S)
    socket.unlink(missing_ok=True)
    os._exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the predictor process."""
    parser = argparse.ArgumentParser(prog="maestroctl.predict.service")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--digest", help="what the artifact must hash to")
    parser.add_argument("--local", type=Path, help="artifact of a refit on own history")
    options = parser.parse_args(argv)
    # Imported here: the client side of this module must not need numpy. OSError: a library of the
    # system that lightgbm wants (libgomp) is missing.
    try:
        from maestroctl.predict.artifact import load_artifact
    except (ImportError, OSError) as exc:
        print(
            f"No learned predictions: `maestroctl[predict]` does not load: {exc}", file=sys.stderr
        )
        return CANNOT_RUN

    try:
        models: dict[str, Answers] = {
            "model": load_artifact(options.artifact, digest=options.digest)
        }
    except MaestroError as exc:
        print(f"predictor: {exc}", file=sys.stderr)
        return 1

    def load_local(path: Path) -> tuple[str, Answers]:
        local = load_artifact(path)
        return local_expert(str(local.about["digest"])), local

    if options.local is not None:
        try:
            name, models[name] = load_local(options.local)
        except MaestroError as exc:  # of another version: the trained model does without it
            print(f"The model of own history is left out: {exc}", file=sys.stderr)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_until_orphaned(PredictorService(models, load_local), options.socket))
    return 0


if __name__ == "__main__":
    sys.exit(main())
