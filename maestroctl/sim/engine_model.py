"""One engine: continuous batching on a token clock.

Theory of operation. Sequences wait, are prefilled, decode on the clock (`token_clock`) and end.
Between two marks of the clock there is one event, whatever the number of tokens: the time of n
iterations is solved, not stepped (`iterations`).

* Prefill. While prompts are pending, an iteration carries min(remaining, max_num_batched_tokens
  - b) of their tokens, in order of admission, and decoders advance by one. A prompt's last
  iteration gives its first token; then it joins the clock.
* Limits. At most `max_num_seqs` sequences run. A prompt is admitted when it fits what is left of
  the KV limit. When the next iteration would not fit, the sequence that comes last in order is
  preempted: its KV is dropped and what it had is prefilled again later (recompute).
* What happens during an iteration (an arrival, an abort, another limit) takes effect at its end.
* Suspension drops all KV at once; after resumption every sequence is prefilled again.
* Contention. While other engines of the device run iterations, all are slower (`device`). A change
  takes effect with the next iteration.

KV is counted in tokens; the unused end of a sequence's last block is not. A sequence that runs
alone is never preempted, since an engine's least limit holds one of full length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from maestroctl.domain.llm import IterationCost
from maestroctl.sim.device import Device
from maestroctl.sim.iterations import Iterations
from maestroctl.sim.loop import EventLoop, Handle
from maestroctl.sim.prefill import Prefill
from maestroctl.sim.sequence import Sequence
from maestroctl.sim.token_clock import OUTGROW, TokenClock

_EPSILON = 1e-9
"""Part of an iteration that counts as none: rounding of the solved quadratic."""


class EngineModel:
    """See the module.

    Args:
        cost: of one iteration.
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: tokens of one iteration, decoding ones included.
        kv_tokens: KV limit in tokens; infinite for an engine that is not ours.
        on_first_token, on_finish, on_gone: told of a sequence's name at the time it happens;
            `on_gone` answers `abort`.
        on_outgrow: told (name, tokens) when a sequence holds more than it booked; returns the
            tokens that are booked from then on.
    """

    def __init__(
        self,
        loop: EventLoop,
        device: Device,
        cost: IterationCost,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int = 2048,
        kv_tokens: float = math.inf,
        on_first_token: Callable[[str], None],
        on_finish: Callable[[str], None],
        on_gone: Callable[[str], None] = lambda _name: None,
        on_outgrow: Callable[[str, int], int] = lambda _name, tokens: tokens,
    ) -> None:
        self._loop = loop
        self._device = device
        device.engines.append(self)
        self._cost = cost
        self._max_num_seqs = max_num_seqs
        self._max_tokens = max_num_batched_tokens
        self._kv_tokens = kv_tokens
        self._on_first_token = on_first_token
        self._on_finish = on_finish
        self._on_gone = on_gone
        self._on_outgrow = on_outgrow
        self._all: dict[str, Sequence] = {}
        self._waiting: list[tuple[float, int, Sequence]] = []  # heap by (key, order)
        self._prefill = Prefill()
        self._clock = TokenClock()
        self._num_submitted = 0
        self._halted = False
        self._stepping = False
        self._busy = False
        self._run: Iterations | None = None  # in flight, or the last that were
        self._pending: Handle | None = None  # their end
        self._num_doomed = 0
        self.num_preempted = 0
        self.busy_s = 0.0

    # --- what the host asks for -----------------------------------------------------------------

    @property
    def num_sequences(self) -> int:
        """Sequences inside, waiting ones included."""
        return len(self._all)

    @property
    def is_busy(self) -> bool:
        """It runs iterations now."""
        return self._busy

    @property
    def kv_used_tokens(self) -> int:
        """Tokens in KV at the last boundary."""
        return self._clock.kv_tokens + self._prefill.kv_tokens

    @property
    def kv_free_tokens(self) -> float:
        """KV that no sequence uses."""
        return self._kv_tokens - self.kv_used_tokens

    def tokens_left(self) -> dict[str, int]:
        """Output tokens still to come of every sequence that decodes now, by name."""
        run, done = self._run, 0
        if run is not None and not run.prefill_tokens and self._pending is not None:
            done = min(run.n, int(run.done_by(self._loop.now_s)))
        return self._clock.tokens_left(done)

    def submit(self, sequence: Sequence) -> None:
        """A stage comes in."""
        self._num_submitted += 1
        sequence.order = self._num_submitted
        self._all[sequence.name] = sequence
        self._wait(sequence)
        if self._stepping or self._halted:
            return
        if not self._busy:
            self._wake_up()
        elif self._may_admit(sequence):
            self.interrupt()

    def rebook(self, name: str, tokens: int) -> int:
        """Another booking for a sequence, at least what it holds; returns it."""
        sequence = self._all[name]
        held = sequence.context
        decodes = name in self._clock.decoding
        if decodes:
            held += sequence.left - self.tokens_left()[name]
        sequence.booked = max(tokens, held)
        if decodes:
            self._clock.mark_outgrow(sequence)
            self.interrupt()
        return sequence.booked

    def abort(self, name: str) -> None:
        """Drop a stage; `on_gone` comes at the end of the iteration, or at once if it waits."""
        sequence = self._all[name]
        if name in self._clock.decoding or sequence in self._prefill.sequences:
            sequence.doomed = True
            self._num_doomed += 1
            self.interrupt()
        else:
            self._waiting = [entry for entry in self._waiting if entry[2] is not sequence]
            heapify(self._waiting)
            del self._all[name]
            self._on_gone(name)

    def set_kv_tokens(self, kv_tokens: float) -> None:
        """Another KV limit, from the next iteration on."""
        self._kv_tokens = kv_tokens
        self.interrupt()

    def suspend(self) -> None:
        """Freeze what is open and drop all KV; `resume` goes on. Not from within a callback."""
        if self._pending is not None:
            self._settle_partial()
        self._halt()
        for sequence in [*self._clock.decoding.values(), *self._prefill.sequences]:
            self._push_back(sequence)
        self._set_busy(False)

    def resume(self) -> None:
        """Go on after `suspend`; everything is prefilled again."""
        self._halted = False
        if self._waiting and not self._busy:
            self._wake_up()

    def close(self) -> None:
        """The process ends: nothing happens here any more."""
        self._halt()
        self._set_busy(False)
        self._device.engines.remove(self)

    def interrupt(self) -> None:
        """Something changed: come to a boundary at the end of the iteration in flight."""
        run = self._run
        if self._pending is None or run is None or run.n <= 1 or self._stepping:
            return
        done = max(1, math.ceil(run.done_by(self._loop.now_s) - _EPSILON))
        if done < run.n:
            self._pending.cancel()
            run.n = done
            self._pending = self._loop.at(run.end_s(), self._end_iterations)

    # --- iterations -----------------------------------------------------------------------------

    def _wake_up(self) -> None:
        """Begin after whatever else happens at this instant, so that it shares the iteration."""
        self._set_busy(True)
        self._run = None
        self._pending = self._loop.after(0.0, self._begin)

    def _begin(self) -> None:
        self._pending = None
        self._plan()

    def _plan(self) -> None:
        """At a boundary: admit, preempt where KV is short, and let the next iterations run."""
        self._admit()
        clock, cost = self._clock, self._cost
        num_decoding = len(clock.decoding)
        if not num_decoding and not self._prefill.sequences:
            self._set_busy(False)
            return
        prefill = self._prefill.next_tokens(max(1, self._max_tokens - num_decoding))
        n = 1 if prefill else self._iterations_ahead()
        first_s = cost.c0_s + cost.c1_s * num_decoding + cost.cp_s * prefill
        first_s += cost.c2_s * clock.kv_tokens
        gamma = self._device.slowdown(cost.gamma)
        run = Iterations(n, prefill, self._loop.now_s, gamma, first_s, cost.c2_s * num_decoding)
        self._run = run
        self._pending = self._loop.at(run.end_s(), self._end_iterations)

    def _iterations_ahead(self) -> int:
        """Iterations until the next mark or until KV is full."""
        n = self._clock.iterations_ahead()
        num_decoding = len(self._clock.decoding)
        if num_decoding > 1 and self._kv_tokens != math.inf:
            n = min(n, int(self._kv_tokens - self.kv_used_tokens) // num_decoding)
        return max(1, n)

    def _end_iterations(self) -> None:
        run = self._run
        assert run is not None
        self._pending = None
        self._stepping = True
        self.busy_s += self._loop.now_s - run.began_s
        if self._clock.decoding:
            self._clock.v += run.n
            for kind, sequence in self._clock.reached():
                if kind == OUTGROW:
                    self._outgrow(sequence)
                else:
                    self._clock.leave(sequence)
                    self._finish(sequence)
        if run.prefill_tokens:
            for sequence in self._prefill.hand_out(run.prefill_tokens):
                self._give_first_token(sequence)
        if self._num_doomed:
            self._drop_doomed()
        self._stepping = False
        if not self._halted:
            self._plan()

    def _give_first_token(self, sequence: Sequence) -> None:
        """Its prompt is in KV, for the first time or once more."""
        sequence.left -= 1
        sequence.context += 1
        if not sequence.started:
            sequence.started = True
            self._on_first_token(sequence.name)
        if sequence.left <= 0:
            self._finish(sequence)
        else:
            self._clock.join(sequence)

    def _outgrow(self, sequence: Sequence) -> None:
        tokens = sequence.base + self._clock.v
        if tokens <= sequence.booked:
            return
        sequence.booked = max(tokens, self._on_outgrow(sequence.name, tokens))
        self._clock.mark_outgrow(sequence)

    def _finish(self, sequence: Sequence) -> None:
        del self._all[sequence.name]
        if sequence.doomed:
            self._num_doomed -= 1
            self._on_gone(sequence.name)
        else:
            self._on_finish(sequence.name)

    def _drop_doomed(self) -> None:
        running = [*self._clock.decoding.values(), *self._prefill.sequences]
        for sequence in [s for s in running if s.doomed]:
            self._take_out(sequence)
            self._finish(sequence)

    def _settle_partial(self) -> None:
        """Count the whole iterations of the run in flight; the broken one is lost."""
        run = self._run
        if run is None or run.prefill_tokens:
            return
        now_s = self._loop.now_s
        self.busy_s += now_s - run.began_s
        self._clock.v += max(0, min(run.n - 1, math.floor(run.done_by(now_s) + _EPSILON)))

    def _halt(self) -> None:
        self._halted = True
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None

    def _set_busy(self, is_busy: bool) -> None:
        if is_busy != self._busy:
            self._busy = is_busy
            self._device.flip(self, is_busy)

    # --- limits ---------------------------------------------------------------------------------

    def _wait(self, sequence: Sequence) -> None:
        heappush(self._waiting, (sequence.key, sequence.order, sequence))

    def _may_admit(self, sequence: Sequence) -> bool:
        num_decoding = len(self._clock.decoding)
        num_running = num_decoding + len(self._prefill.sequences)
        if num_running == 0:
            return True
        needed = self.kv_used_tokens + sequence.context + num_decoding
        return num_running < self._max_num_seqs and needed <= self._kv_tokens

    def _admit(self) -> None:
        decoding = self._clock.decoding
        while (
            self._kv_tokens != math.inf
            and len(decoding) > 1
            and self.kv_used_tokens + len(decoding) > self._kv_tokens
        ):
            last = max(decoding.values(), key=lambda sequence: (sequence.key, sequence.order))
            self.num_preempted += 1
            self._push_back(last)
        while self._waiting and self._may_admit(self._waiting[0][2]):
            self._prefill.add(heappop(self._waiting)[2])

    def _push_back(self, sequence: Sequence) -> None:
        """Drop its KV; it waits to be prefilled again, with its place in the order."""
        self._take_out(sequence)
        sequence.todo = sequence.context
        self._wait(sequence)

    def _take_out(self, sequence: Sequence) -> None:
        """It runs no more; its KV is free."""
        if sequence.name in self._clock.decoding:
            self._clock.leave(sequence)
        else:
            self._prefill.remove(sequence)
