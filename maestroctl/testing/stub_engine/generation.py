"""Slots, pacing, pausing and KV blocks: when each token of each sequence becomes visible.

Theory of operation. A sequence is in exactly one place::

    submit -> WAITING --slot and blocks--> RUNNING --last token--> DONE
                 ^                            |
                 +------- preempted ----------+        abort, drop: any -> DONE

The k-th token of a sequence appears ``prefill + k * token_interval`` seconds after it starts, so a
whole answer takes what the cost model says (prefill + tokens x decode time). Every running
sequence has one timer; with a zero interval tokens come in bursts without any. A preempted sequence
keeps its tokens and pays prefill again for prompt and tokens.

Pause states are vLLM's: ``NEW`` starts nothing but lets the running finish; ``ALL`` freezes every
sequence with its remaining time. Texts are fixed beforehand, so no pause can change one.

Blocks: 16 tokens each. A sequence that needs a block when none is free preempts the running
sequence of lowest priority and latest arrival, itself perhaps.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NoReturn, Protocol

from maestroctl.testing.stub_engine.faults import Faults
from maestroctl.testing.stub_engine.options import BLOCK_TOKENS, StubOptions

BURST_TOKENS = 128
"""Tokens made at once when the interval is zero, before other connections get a turn."""


class PauseState(Enum):
    """What the scheduler starts and steps."""

    UNPAUSED = "unpaused"
    NEW = "new"
    ALL = "all"


class Place(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


class Sink(Protocol):
    """Who is told about the tokens of a sequence."""

    def on_tokens(self, produced: int) -> None:
        """So many tokens exist now; more will come."""

    def on_end(self, produced: int, reason: str) -> None:
        """So many tokens exist and there will be no more."""

    def on_cut(self, produced: int) -> None:
        """Break the connection after so many tokens."""


class Sequence:
    """One request in the engine. Owner: `Generation`."""

    __slots__ = (
        "arrival", "blocks", "due_s", "finish_reason", "place", "priority", "produced",
        "prompt_tokens", "request_id", "sink", "submitted_s", "target", "timer",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        prompt_tokens: int,
        target: int,
        finish_reason: str,
        sink: Sink,
        priority: int = 0,
    ) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.target = target  # tokens of the whole output
        self.finish_reason = finish_reason
        self.sink = sink
        self.priority = priority
        self.arrival = 0
        self.produced = 0
        self.blocks = 0
        self.submitted_s = 0.0
        self.place = Place.WAITING
        self.due_s = 0.0  # loop time of the next token; while frozen: seconds left until it
        self.timer: asyncio.Handle | None = None

    def __lt__(self, other: Sequence) -> bool:
        return (self.priority, self.arrival) < (other.priority, other.arrival)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that prompt and so many output tokens take."""
        return -(-(self.prompt_tokens + tokens) // BLOCK_TOKENS)


class Generation:
    """The scheduler of the stub engine.

    Args:
        options: slots, pacing and block pool.
        faults: switches that act at a token.
        usable: whether weights and KV cache are in place.
        die: ends the process with a message; called when a token is due without memory, and by the
            switch ``exit_at_token``.
        loop: gives time and timers.
    """

    def __init__(
        self,
        options: StubOptions,
        faults: Faults,
        usable: Callable[[], bool],
        die: Callable[[str], NoReturn],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.pause_state = PauseState.UNPAUSED
        self.running: set[Sequence] = set()
        self.num_preemptions = 0
        self.used_blocks = 0
        self.finished: Counter[str] = Counter()  # by finish reason
        self.generation_tokens = 0
        self.prompt_tokens = 0
        self.first_tokens = 0
        self.ttft_sum_s = 0.0
        self._options = options
        self._faults = faults
        self._usable = usable
        self._die = die
        self._loop = loop
        self._waiting: list[Sequence] = []  # heap; may hold sequences that are DONE meanwhile
        self._num_waiting = 0
        self._num_arrivals = 0
        self._admitting = False
        self._drained: list[asyncio.Future[None]] = []  # who waits for `running` to be empty

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return self._num_waiting

    @property
    def kv_usage(self) -> float:
        """Used share of the block pool, 0 to 1."""
        return self.used_blocks / max(1, self._options.num_blocks)

    def submit(self, sequence: Sequence) -> None:
        """Take a new sequence; it may end before this returns."""
        self._num_arrivals += 1
        sequence.arrival = self._num_arrivals
        sequence.submitted_s = self._loop.time()
        if not self._options.priority_scheduling:
            sequence.priority = 0
        self.prompt_tokens += sequence.prompt_tokens
        self._enqueue(sequence)
        self._admit()

    def finish(self, sequence: Sequence, reason: str | None) -> None:
        """End a sequence now; None = its client has gone, tell nobody."""
        if sequence.place is Place.DONE:
            return
        self._take_out(sequence)
        sequence.place = Place.DONE
        self.finished[reason or "abort"] += 1
        if reason is not None:
            sequence.sink.on_end(sequence.produced, reason)
        self._admit()

    def abort(self, request_ids: Iterable[str] | None = None) -> int:
        """End sequences with reason ``abort``; returns how many.

        Args:
            request_ids: ids of the engine (``chatcmpl-X``, ``cmpl-X-0``), unknown ones are ignored;
                None = every sequence.
        """
        doomed = [*self.running, *(s for s in self._waiting if s.place is Place.WAITING)]
        if request_ids is not None:
            wanted = set(request_ids)
            doomed = [sequence for sequence in doomed if sequence.request_id in wanted]
        for sequence in sorted(doomed):
            self.finish(sequence, "abort")
        return len(doomed)

    async def pause(self, mode: str, *, clear_cache: bool) -> None:
        """Pause as vLLM does (``abort``, ``wait``, ``keep``); returns when it is complete."""
        if mode == "keep":
            self.freeze()
        else:
            self._thaw(PauseState.NEW)
        if mode == "abort":
            self.abort()
        elif mode == "wait" and self.running:
            drained = self._loop.create_future()
            self._drained.append(drained)
            await drained
        if clear_cache:
            self.preempt_all()

    def freeze(self) -> None:
        """Stop every clock, keep every sequence."""
        if self.pause_state is not PauseState.ALL:
            self.pause_state = PauseState.ALL
            for sequence in self.running:
                self._stop_clock(sequence)

    def resume(self) -> None:
        """Go on where a pause stopped."""
        self._thaw(PauseState.UNPAUSED)
        self._admit()

    def preempt_all(self) -> int:
        """Move every running sequence back to the queue, its KV lost; returns how many."""
        running = sorted(self.running)
        for sequence in running:
            self._preempt(sequence)
        self._admit()
        return len(running)

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.place = Place.WAITING
        self._num_waiting += 1
        heapq.heappush(self._waiting, sequence)

    def _admit(self) -> None:
        """Start what the slots and blocks allow. Not recursive: a start may end at once."""
        if self._admitting:
            return
        self._admitting = True
        try:
            while self._waiting and self.pause_state is PauseState.UNPAUSED:
                head = self._waiting[0]
                if head.place is not Place.WAITING:
                    heapq.heappop(self._waiting)
                elif self._has_room_for(head):
                    heapq.heappop(self._waiting)
                    self._num_waiting -= 1
                    self._start(head)
                else:
                    return
        finally:
            self._admitting = False

    def _has_room_for(self, sequence: Sequence) -> bool:
        if not self.running:
            return True  # alone it always fits: max_model_len is checked against the pool at start
        free_blocks = self._options.num_blocks - self.used_blocks
        has_slot = len(self.running) < self._options.max_num_seqs
        return has_slot and sequence.blocks_for(sequence.produced + 1) <= free_blocks

    def _start(self, sequence: Sequence) -> None:
        if not self._usable():
            self._die("a sequence was started while weights or KV cache are gone")
        sequence.place = Place.RUNNING
        self.running.add(sequence)
        self._book(sequence, sequence.blocks_for(sequence.produced))
        prefill_tokens = sequence.prompt_tokens + sequence.produced
        prefill_s = self._options.prefill_interval_s * prefill_tokens
        first_s = prefill_s + self._faults.token_interval_s
        sequence.due_s = self._loop.time() + first_s
        if first_s == 0:
            self._step(sequence)
        else:
            self._schedule(sequence)

    def _schedule(self, sequence: Sequence) -> None:
        sequence.timer = self._loop.call_at(sequence.due_s, self._step, sequence)

    def _step(self, sequence: Sequence) -> None:
        """Make the next token, or a burst of them; schedule the one after."""
        sequence.timer = None
        if not self._usable():
            self._die("a token was due while weights or KV cache are gone")
        if (fault := self._faults.due(sequence.produced)) and sequence.produced < sequence.target:
            self._act_on_fault(sequence, fault)
            return
        interval_s = self._faults.token_interval_s
        count = min(self._burst(interval_s, sequence.produced), sequence.target - sequence.produced)
        if sequence.produced == 0:
            self.first_tokens += 1
            self.ttft_sum_s += self._loop.time() - sequence.submitted_s
        sequence.produced += count
        self.generation_tokens += count
        if sequence.produced >= sequence.target:
            self.finish(sequence, sequence.finish_reason)
            return
        sequence.sink.on_tokens(sequence.produced)
        self._grow(sequence)
        if sequence.place is not Place.RUNNING or self.pause_state is PauseState.ALL:
            return
        if interval_s > 0:
            sequence.due_s += interval_s
            self._schedule(sequence)
        else:
            sequence.due_s = self._loop.time()
            sequence.timer = self._loop.call_soon(self._step, sequence)

    def _burst(self, interval_s: float, produced: int) -> int:
        count = 1 if interval_s > 0 else BURST_TOKENS
        limit = self._faults.tokens_until_fault(produced)
        return count if limit is None else min(count, limit)

    def _act_on_fault(self, sequence: Sequence, fault: str) -> None:
        if fault == "exit":
            # A moment later, so that tokens already written reach the client.
            self._loop.call_later(0.01, self._die, "exit_at_token")
        elif fault == "cut":
            sequence.sink.on_cut(sequence.produced)
        # "stall": no timer is set, the sequence stays where it is

    def _grow(self, sequence: Sequence) -> None:
        needed = sequence.blocks_for(sequence.produced)
        while sequence.place is Place.RUNNING and needed > sequence.blocks:
            if self.used_blocks < self._options.num_blocks or len(self.running) == 1:
                self._book(sequence, needed)
            else:
                self._preempt(max(self.running))

    def _book(self, sequence: Sequence, blocks: int) -> None:
        self.used_blocks += blocks - sequence.blocks
        sequence.blocks = blocks

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._take_out(sequence)
        self._enqueue(sequence)

    def _take_out(self, sequence: Sequence) -> None:
        """Remove from the place it is in; frees slot and blocks, stops its clock."""
        if sequence.place is Place.WAITING:
            self._num_waiting -= 1  # the heap entry is dropped when it comes up
            return
        if sequence.timer is not None:
            sequence.timer.cancel()
            sequence.timer = None
        self.running.discard(sequence)
        self._book(sequence, 0)
        if not self.running:
            for drained in self._drained:
                if not drained.done():
                    drained.set_result(None)
            self._drained.clear()

    def _thaw(self, state: PauseState) -> None:
        was_frozen, self.pause_state = self.pause_state is PauseState.ALL, state
        if was_frozen:
            for sequence in sorted(self.running):
                sequence.due_s += self._loop.time()
                self._schedule(sequence)

    def _stop_clock(self, sequence: Sequence) -> None:
        sequence.due_s = max(0.0, sequence.due_s - self._loop.time())
        if sequence.timer is not None:
            sequence.timer.cancel()
            sequence.timer = None
