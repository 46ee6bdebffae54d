"""Finds and reads the files of a folder of stage traces; base install, no numbers are made here.

``stages_<source>.jsonl``, plain or packed as ``.jsonl.zst``, one row per LLM call. What the rows
mean is in `predict.traces` (for training) and `sim.traces` (for playing them).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from maestroctl.errors import ConfigError

_WINDOW_BYTES = 64 << 20
_PATTERNS = ("stages_*.jsonl", "stages_*.jsonl.zst")


def find_traces(folder: Path) -> list[Path]:
    """Trace files of a data folder or of its ``stages``, by name.

    Raises:
        ConfigError: it is no folder, or has none.
    """
    if not folder.is_dir():
        found = "it is a file" if folder.exists() else "there is no such folder"
        raise ConfigError(f"stage traces are read from a folder, and {found}", file=str(folder))
    inner = folder / "stages"
    home = inner if inner.is_dir() else folder
    files = sorted(path for pattern in _PATTERNS for path in home.glob(pattern))
    if not files:
        raise ConfigError(
            "there is no stage trace in it",
            file=str(folder),
            hint="the folder must hold stages_<source>.jsonl or .jsonl.zst files",
        )
    return files


def read_trace(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and text of every line that is not empty.

    Raises:
        ConfigError: it cannot be read or unpacked, or the package for that is missing.
    """
    try:
        for number, line in enumerate(_read_lines(path), start=1):
            if not line.isspace():
                yield number, line
    except OSError as exc:
        raise ConfigError(f"it cannot be read: {exc.strerror}", file=str(path)) from exc


def _read_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as raw:
        if path.suffix != ".zst":
            yield from raw
            return
        try:
            import zstandard
        except ImportError as exc:
            raise ConfigError(
                "reading packed traces needs the package zstandard",
                file=str(path),
                hint="pip install zstandard",
            ) from exc
        stream = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).stream_reader(raw)
        try:
            yield from io.BufferedReader(stream)
        except zstandard.ZstdError as exc:
            raise ConfigError(f"it cannot be unpacked: {exc}", file=str(path)) from exc
