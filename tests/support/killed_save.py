"""Saves an artifact over another one, killed at another file operation each time.

``python tests/support/killed_save.py NEW OLD FOLDER``

Each save is a forked child in which the operations of `save_artifact` are counted; it kills itself
with SIGKILL before one of them, in the middle of one, or after the last. The report, a list in
JSON, says for each: ``at`` what it died, what then lay at the place (``old``, ``new`` or
``neither``), whether a part of a file lay ``beside`` it, and what a sweep left of that.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import zipfile
from pathlib import Path
from typing import Any

from maestroctl.predict.artifact import load_artifact, save_artifact
from maestroctl.predict.artifact_facts import sweep_partials
from maestroctl.predict.model import PredictorModel


class Death:
    """Comes to this process at a given operation.

    Args:
        number: operations that pass before.
        note: file descriptor that is told what it was.
    """

    def __init__(self, number: int, note: int) -> None:
        self._left = number
        self._note = note

    def is_due(self, at: str) -> bool:
        """Count an operation; whether it is the one."""
        self._left -= 1
        if self._left == -1:
            os.write(self._note, at.encode())
        return self._left == -1

    def strike(self) -> None:
        """Kill this process."""
        os.kill(os.getpid(), signal.SIGKILL)

    def pass_by(self, at: str) -> None:
        """Count an operation, and strike if it is the one."""
        if self.is_due(at):
            self.strike()


def arm(death: Death) -> None:
    """Have every file operation of a save pass by death."""
    real_open, replace, fsync = io.open, os.replace, os.fsync

    class File(io.FileIO):
        def write(self, data: Any) -> int:
            death.pass_by("before a write")
            if death.is_due("in a write"):
                super().write(bytes(data)[: len(data) // 2])
                death.strike()
            return super().write(data)

    def open_(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if not (str(path).endswith(".part") and mode == "wb"):
            return real_open(path, mode, *args, **options)
        death.pass_by("before the file is made")
        return io.BufferedWriter(File(path, "w"))

    def replace_(source: Any, target: Any) -> None:
        death.pass_by("before the rename")
        replace(source, target)
        death.pass_by("after the rename")

    def fsync_(file: int) -> None:
        death.pass_by("before the sync")
        fsync(file)

    io.open, os.replace, os.fsync = open_, replace_, fsync_  # type: ignore[assignment]


def save_and_die(model: PredictorModel, place: Path, number: int) -> str:
    """Save in a child that dies at an operation; which one, or nothing when it lived."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        arm(Death(number, writing))
        save_artifact(model, place)
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading) as note:
        at = note.read()
    assert os.WIFSIGNALED(status) == bool(at), status
    return at


def main() -> None:
    """Kill saves at one operation after another until one lives."""
    new, old, folder = map(Path, sys.argv[1:4])
    model, place, report = load_artifact(new), folder / "local.mpred", list[dict[str, Any]]()
    # Compression is most of the time of a save, and no part of what is asked here.
    zipfile.ZIP_LZMA = zipfile.ZIP_STORED  # type: ignore[misc]
    save_artifact(model, place)
    known = {old.read_bytes(): "old", place.read_bytes(): "new"}
    while True:
        place.write_bytes(old.read_bytes())
        at = save_and_die(model, place, len(report))
        beside = len(list(folder.iterdir())) - 1
        sweep_partials(place)
        report.append(
            {
                "at": at,
                "holds": known.get(place.read_bytes(), "neither"),
                "beside": beside,
                "left": [path.name for path in folder.iterdir() if path != place],
            }
        )
        if not at:
            break
    print(json.dumps(report))


if __name__ == "__main__":
    main()
