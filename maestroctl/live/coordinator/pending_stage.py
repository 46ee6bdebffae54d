"""What the core may do to a stage on its way: dispatch it, take it back, say how it ended.

The core's word comes at any moment, to a task that waits for it (`PendingStage.waiter`) or for its
node (`interruptible`). In the second case the task is interrupted, which `TakenBack` tells from the
cancellation of a caller who left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from maestroctl.domain.outcome import Outcome
from maestroctl.errors import (
    MODEL_UNAVAILABLE,
    Overloaded,
    RequestError,
    Unavailable,
    UpstreamFailed,
)
from maestroctl.gateway.submit import StageCall
from maestroctl.live.coordinator.answer_watcher import BrokenAnswer
from maestroctl.scheduler.effects import DispatchStage, ResolveStage, WithdrawStage

StageEffect = DispatchStage | WithdrawStage | ResolveStage


class TakenBack(Exception):
    """The core withdrew or resolved the stage while its attempt was under way."""


@dataclass(slots=True)
class PendingStage:
    """A stage between its arrival and its last byte. Owner: the task that runs it.

    Attributes:
        inbox: effects of the core not yet looked at.
        task: the task to interrupt; None while nobody waits.
        taken_back: the interrupt is ours, not the caller's.
        resolution: how it ended, once it has.
    """

    call: StageCall
    inbox: deque[StageEffect] = field(default_factory=deque)
    waiter: asyncio.Future[None] | None = None
    task: asyncio.Task[Any] | None = None
    taken_back: bool = False
    resolution: ResolveStage | None = None
    dispatch: DispatchStage | None = None
    error: RequestError | None = None

    def deliver(self, effect: StageEffect) -> None:
        """Take an effect of the core."""
        if isinstance(effect, ResolveStage):
            self.resolution = effect
        if isinstance(effect, DispatchStage):
            self.inbox.append(effect)
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_result(None)
        elif self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        elif self.task is not None and not self.taken_back:
            self.taken_back = True
            self.task.cancel()


class interruptible:
    """Within it the core may take the stage back: then `TakenBack` is raised inside."""

    __slots__ = ("_pending",)

    def __init__(self, pending: PendingStage) -> None:
        self._pending = pending

    async def __aenter__(self) -> None:
        if self._pending.resolution is not None:
            raise TakenBack
        self._pending.task = asyncio.current_task()

    async def __aexit__(self, kind: type[BaseException] | None, exc: object, tb: object) -> None:
        pending = self._pending
        task, pending.task = pending.task, None
        if pending.taken_back and task is not None:
            pending.taken_back = False
            if task.uncancel() == 0 and kind is asyncio.CancelledError:
                raise TakenBack


def error_of(resolution: ResolveStage | None, cause: RequestError | None) -> RequestError:
    """The error that the caller of a stage without an answer gets."""
    if resolution is None:
        return BrokenAnswer("the answer was withdrawn")
    reason = resolution.reason or resolution.outcome.value
    match resolution.outcome:
        case Outcome.REJECTED:
            return Overloaded(reason, retry_after_s=resolution.retry_after_s or 1.0)
        case Outcome.UNAVAILABLE if resolution.retry_after_s is None:
            return Unavailable(reason, code=MODEL_UNAVAILABLE)
        case Outcome.UNAVAILABLE:
            return Unavailable(
                reason, code=resolution.outcome.value, retry_after_s=resolution.retry_after_s
            )
        case Outcome.INTERRUPTED:
            return Unavailable(reason, code=resolution.outcome.value, retry_after_s=5.0)
        case Outcome.FAILED if cause is not None:
            return cause
        case _:
            return UpstreamFailed(reason, code=resolution.outcome.value)
