"""Keeps the predictors' running figures in the state database, one row per group that changed.

Written every `SAVE_EVERY_S` and at the end, so a coordinator that is killed forgets a few seconds
at most. Figures that cannot be read (another version) are left out: they are learned again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable

from maestroctl.errors import SchemaMismatch, StoreError
from maestroctl.live.coordinator.prediction_desk import PredictionDesk
from maestroctl.predict.group_table import STATE_VERSION
from maestroctl.predict.recalibration import OnlineState
from maestroctl.store.database import Store
from maestroctl.store.journal import Journal
from maestroctl.store.reader import StateReader
from maestroctl.store.rows import MetaRow

SAVE_EVERY_S = 2.0
_PREFIX = "online/"
_HEAD = _PREFIX
"""Key of the row with the version and the count; groups have their name behind it."""
_MAX_EMPTY_ROWS = 1000
"""Of forgotten groups, from which on they are deleted: names come from clients without end."""
_MAX_GROUPS_A_TURN = 200
"""Groups turned into text before the event loop gets its turn: about 5 ms."""


def load_online(store: Store, notify: Callable[[str], None]) -> OnlineState:
    """What an earlier coordinator learned; empty when there is nothing that fits."""
    store.forget_metas(_PREFIX, empty_only=True)
    try:
        return read_online(store)
    except SchemaMismatch as exc:
        notify(f"The predictors' running figures cannot be read and start anew: {exc}")
        store.forget_metas(_PREFIX)
        return OnlineState()


def read_online(store: StateReader) -> OnlineState:
    """What was learned, as it is written now.

    Raises:
        SchemaMismatch: by another version.
    """
    found = {name: text for name, text in store.metas(_PREFIX).items() if text}
    head = found.pop(_HEAD, None)
    if head is None:
        return OnlineState()
    try:
        groups = {name[len(_PREFIX) :]: json.loads(text) for name, text in found.items()}
        return OnlineState.from_json({**json.loads(head), "groups": groups})
    except (ValueError, KeyError, TypeError) as exc:
        raise SchemaMismatch(f"they are of another version: {exc!r}") from exc


class OnlineKeeper:
    """Writes the figures down while the coordinator runs."""

    def __init__(self, desk: PredictionDesk, journal: Journal, store: Store) -> None:
        self._desk = desk
        self._journal = journal
        self._store = store
        self._num_emptied = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write now and then."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Write the rest."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.save()

    async def save(self) -> None:
        """Hand everything that changed to the journal."""
        state = self._desk.state
        while changes := state.take_changes(_MAX_GROUPS_A_TURN):
            rows = [MetaRow(_PREFIX + name, _text(group)) for name, group in changes.items()]
            head = {"version": STATE_VERSION, "observed": state.observed}
            rows.append(MetaRow(_HEAD, _text(head)))
            self._journal.write(rows)
            self._num_emptied += sum(group is None for group in changes.values())
            await asyncio.sleep(0)
        if self._num_emptied >= _MAX_EMPTY_ROWS:
            self._num_emptied = 0
            await self._journal.flush()
            await asyncio.to_thread(self._store.forget_metas, _PREFIX, empty_only=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            self._desk.sweep()
            with contextlib.suppress(StoreError):  # reported by the journal already
                await self.save()


def _text(value: object) -> str:
    """A forgotten group becomes an empty row, which is deleted later, with others."""
    return "" if value is None else json.dumps(value, separators=(",", ":"))
