"""What a node core saw and did lately, for the story of an engine or stage.

Entries are tuples and are put into words only when somebody asks: the hot path writes one per
step. Old entries fall out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from maestroctl.domain.ids import EngineId, StageId

MAX_ENTRIES = 4000  # about a megabyte; the stories of the last thousand stages


@dataclass(slots=True)
class Journal:
    """Bounded log of (time, engine, stage, what happened)."""

    entries: deque[tuple[float, EngineId | None, StageId | None, str]] = field(
        default_factory=lambda: deque(maxlen=MAX_ENTRIES)
    )

    def note(
        self, now_s: float, engine_id: EngineId | None, stage_id: StageId | None, what: str
    ) -> None:
        """Write one line."""
        self.entries.append((now_s, engine_id, stage_id, what))

    def story(self, subject: str) -> tuple[str, ...]:
        """Lines about one engine or stage, oldest first."""
        return tuple(
            f"{now_s:.3f} {engine_id or '-'} {stage_id or '-'}: {what}"
            for now_s, engine_id, stage_id, what in self.entries
            if subject in (engine_id, stage_id)
        )
