"""Replays a log from its first event to its end, or to the first difference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from maestroctl.errors import MaestroError
from maestroctl.replay.compare import Difference, compare
from maestroctl.replay.core_of_log import Core, make_core
from maestroctl.telemetry.event_codec import Entry
from maestroctl.telemetry.log_header import LogHeader
from maestroctl.telemetry.log_reader import read_log


@dataclass(slots=True)
class Replay:
    """What came of it.

    Attributes:
        num_events: compared, the one that differs included.
        num_effects: recorded for them.
        span_s: seconds from the first event to the last one compared.
        difference: the first one that counts; None = everything was decided alike.
        num_reworded: events that were only explained otherwise, where that does not count.
    """

    path: Path
    header: LogHeader
    num_events: int = 0
    num_effects: int = 0
    span_s: float = 0.0
    difference: Difference | None = None
    num_reworded: int = 0


def replay_log(path: Path, *, explanations: bool = True) -> Replay:
    """Run the log's events through a fresh core.

    Args:
        path: of the newest part.
        explanations: a decision record that differs counts as a difference.

    Raises:
        MaestroError: no log, of another format, without its beginning, or not to be rebuilt.
    """
    header, entries = read_log(path)
    if header.part > 0:
        raise MaestroError(
            f"replaying {path}: its beginning is gone ({header.part} earlier files were deleted),"
            " and what the core knew by then is not in the log",
            hint="raise `keep` or `max_size` in [event_log] to keep logs whole for longer",
        )
    core = make_core(header)
    replay = Replay(path, header)
    began_s: float | None = None
    for entry in entries:
        began_s = entry.now_s if began_s is None else began_s
        replay.num_events += 1
        replay.num_effects += len(entry.effects)
        replay.span_s = entry.now_s - began_s
        found = _replay_one(core, entry, replay.num_events, began_s)
        if found is None:
            continue
        if found.only_explained and not explanations:
            replay.num_reworded += 1
            continue
        replay.difference = found
        break
    return replay


def _replay_one(core: Core, entry: Entry, number: int, began_s: float) -> Difference | None:
    try:
        effects, error = core.handle(entry.event, entry.now_s), ""
    except Exception as exc:  # the recorded core may have raised as well
        effects, error = (), f"{type(exc).__name__}: {exc}"
    return compare(entry, effects, error, number, began_s)
