"""The queue: one heap per class of stages that can go to the same places.

Stages that agree on models, exclusions and class are interchangeable for routing, so if the first
of them has no place, none has. The core looks at the first of each class that serves a model, in
the order (rank, key, stage id), and never at the rest: an event costs O(log n).

Beside the heap each class keeps its stages by arrival. Once the oldest has waited for longer than a
limit it goes first, whatever its key: from then on only older ones overtake it.

A stage leaves the middle of a heap by being struck out: its entry number no longer matches. Struck
out entries are swept when they outnumber the live ones, so memory follows the live stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from math import inf
from typing import TypeVar

from maestroctl.domain.ids import ModelName
from maestroctl.scheduler.coordinator_state import AGED_RANK, LATE_RANK, QueueKey, StageState

Entry = tuple[int, float, str, int, StageState]
"""rank, key, stage id, entry number, stage: entry numbers are unique, so stages never compare."""

Arrival = tuple[float, str, int, StageState]
"""arrival, stage id, entry number, stage."""
Held = TypeVar("Held", Entry, Arrival)

_SWEEP_AT = 64
"""Struck-out entries below this are not worth a sweep."""


class QueueClass:
    """Stages that can go to the same places.

    Attributes:
        opened_s: since when it has not been empty.
        homeless_since_s: since when no connected node can take it; None = some can.
        is_flexible: some stage in it has further candidate models.
    """

    __slots__ = (
        "_by_arrival",
        "_heap",
        "homeless_since_s",
        "is_external",
        "is_flexible",
        "key",
        "models",
        "num_live",
        "opened_s",
    )

    def __init__(self, key: QueueKey, now_s: float) -> None:
        self.key = key
        self.models: tuple[ModelName, ...] = key[0]
        self.is_external: bool = key[4]
        self.opened_s = now_s
        self.homeless_since_s: float | None = None
        self.is_flexible = False
        self.num_live = 0
        self._heap: list[Entry] = []
        self._by_arrival: list[Arrival] = []

    def push(self, entry: Entry) -> None:
        """Add a stage."""
        heappush(self._heap, entry)
        heappush(self._by_arrival, (entry[4].stage.arrival_s, *entry[2:]))
        self.num_live += 1

    def first(self, aged_before_s: float = -inf) -> Entry | None:
        """The entry that goes first, with the rank and key that count in its turn.

        Args:
            aged_before_s: stages that became ready before this have waited for too long: the
                oldest of them goes first.
        """
        oldest = _live_top(self._by_arrival)
        if oldest is not None and oldest[0] < aged_before_s:
            is_late = oldest[3].rank == LATE_RANK
            return (LATE_RANK - 1 if is_late else AGED_RANK, *oldest)
        return _live_top(self._heap)

    def last(self) -> StageState | None:
        """A stage of the back half, while two wait at least: a leaf of the heap."""
        heap = self._heap
        while len(heap) > 1:
            entry = heap[-1]
            if entry[4].entry == entry[3]:
                return entry[4] if self.num_live > 1 else None
            heap.pop()
        return None

    def strike(self) -> None:
        """One of the entries is not live any more; its stage says so."""
        self.num_live -= 1
        self._heap = _swept(self._heap, self.num_live)
        self._by_arrival = _swept(self._by_arrival, self.num_live)

    def stages(self) -> list[StageState]:
        """Live stages in their order: O(n log n)."""
        live = [entry for entry in self._heap if entry[4].entry == entry[3]]
        return [entry[4] for entry in sorted(live)]

    def heap_size(self) -> int:
        """Entries held, struck-out ones included: of the larger of the two heaps."""
        return max(len(self._heap), len(self._by_arrival))


class StageQueue:
    """Every queued stage, by class."""

    __slots__ = ("_by_model", "_classes", "_num_entries", "num_queued")

    def __init__(self) -> None:
        self._classes: dict[QueueKey, QueueClass] = {}
        self._by_model: dict[ModelName, dict[QueueKey, QueueClass]] = {}
        self._num_entries = 0  # ever made; numbers the entries
        self.num_queued = 0

    def classes(self) -> Mapping[QueueKey, QueueClass]:
        """Every class that is not empty, oldest first."""
        return self._classes

    def serving(self, model: ModelName) -> Mapping[QueueKey, QueueClass]:
        """Classes with stages that `model` may serve."""
        return self._by_model.get(model, _NONE)

    def push(self, stage: StageState, now_s: float) -> QueueClass:
        """Queue the stage in the class that it belongs to now."""
        key = stage.class_key()
        queue_class = self._classes.get(key)
        if queue_class is None:
            queue_class = self._classes[key] = QueueClass(key, now_s)
            for model in queue_class.models:
                self._by_model.setdefault(model, {})[key] = queue_class
        self._num_entries += 1
        stage.entry = self._num_entries
        stage.queue_key = key
        if len(stage.stage.candidates) > 1:
            queue_class.is_flexible = True
        queue_class.push((stage.rank, stage.key, stage.stage_id, stage.entry, stage))
        self.num_queued += 1
        return queue_class

    def rekey(self, stage: StageState, rank: int, key: float, now_s: float) -> QueueClass:
        """Give the stage the place that it has by this rank and key; in which class that is.

        Where that is another class, which can go to the same places, it has waited as long.
        """
        assert stage.queue_key is not None
        before = self._classes[stage.queue_key]
        stage.rank, stage.key = rank, key
        if stage.class_key() == before.key:
            self._num_entries += 1
            stage.entry = self._num_entries
            before.strike()
            before.push((rank, key, stage.stage_id, stage.entry, stage))
            return before
        self.remove(stage)
        after = self.push(stage, now_s)
        after.opened_s = min(after.opened_s, before.opened_s)
        after.homeless_since_s = before.homeless_since_s
        return after

    def remove(self, stage: StageState) -> None:
        """Take the stage out, wherever in its heap it is."""
        key = stage.queue_key
        assert key is not None
        stage.queue_key = None
        stage.entry = 0
        self.num_queued -= 1
        queue_class = self._classes[key]
        queue_class.strike()
        if queue_class.num_live == 0:
            del self._classes[key]
            for model in queue_class.models:
                by_key = self._by_model[model]
                del by_key[key]
                if not by_key:
                    del self._by_model[model]

    def __iter__(self) -> Iterator[StageState]:
        """Every queued stage by (rank, key, id), as if none had waited too long: O(n log n)."""
        stages = [stage for c in self._classes.values() for stage in c.stages()]
        stages.sort(key=lambda stage: (stage.rank, stage.key, stage.stage_id))
        return iter(stages)


def _live_top(heap: list[Held]) -> Held | None:
    """The first live entry; struck-out ones before it are dropped."""
    while heap:
        entry = heap[0]
        if entry[-1].entry == entry[-2]:
            return entry
        heappop(heap)
    return None


def _swept(heap: list[Held], num_live: int) -> list[Held]:
    """Without the struck-out entries, when they are many and the most."""
    dead = len(heap) - num_live
    if dead <= _SWEEP_AT or dead <= num_live:
        return heap
    live = [entry for entry in heap if entry[-1].entry == entry[-2]]
    heapify(live)
    return live


_NONE: Mapping[QueueKey, QueueClass] = {}
