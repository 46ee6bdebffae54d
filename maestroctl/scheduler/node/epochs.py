"""Coordinator epochs: one coordinator commands, the newest; what the older one offered is over."""

from __future__ import annotations

from maestroctl.domain.outcome import Outcome
from maestroctl.scheduler.events import EpochAnnounced
from maestroctl.scheduler.node.stages import abort
from maestroctl.scheduler.node.state import NodeState


def announce_epoch(state: NodeState, event: EpochAnnounced) -> None:
    """A coordinator connected."""
    if event.epoch < state.epoch:
        state.stale()
    elif event.epoch > state.epoch:
        change_epoch(state, event.epoch)


def change_epoch(state: NodeState, epoch: int) -> None:
    """Obey `epoch` from now on: stages of older ones are aborted, sequences begin again."""
    state.epoch = epoch
    state.applied_seq = 0
    state.early_advice.clear()
    state.changed = True
    reason = "a newer coordinator took over"
    for stage in list(state.stages.values()):
        if stage.epoch < epoch:
            abort(state, state.engines[stage.engine_id], stage, Outcome.INTERRUPTED, reason)
