"""Opens the event log of a live core, as ``[event_log]`` says."""

from __future__ import annotations

import logging
from pathlib import Path

from maestroctl.domain.fleet import EventLogSpec
from maestroctl.telemetry.log_header import LogHeader
from maestroctl.telemetry.recorder import EventLog, EventRecorder, NoLog

log = logging.getLogger(__name__)


def open_event_log(spec: EventLogSpec, home: Path, header: LogHeader) -> EventLog:
    """The log that `header` begins; one that cannot be written is reported and left out.

    Args:
        home: holds the folder ``events`` when the spec names none.
    """
    if not spec.enabled:
        return NoLog()
    folder = Path(spec.folder) if spec.folder else home / "events"
    path = folder / header.file_name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        log.warning("no event log in %s: %s", folder, exc.strerror)
        return NoLog()
    recorder = EventRecorder(
        path, header, max_bytes=spec.max_bytes, keep=spec.keep, in_background=True
    )
    if recorder.failure is not None:
        log.warning("no event log %s: %s", path, recorder.failure.strerror)
    return recorder
