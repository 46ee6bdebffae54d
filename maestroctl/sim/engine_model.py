"""One engine: continuous batching on a token clock.

Theory of operation. Every decoding sequence gains one token per iteration, so one integer clock V
(iterations done) serves all of them: a sequence that joins at V with n tokens to go ends at V + n,
and a heap of such marks says what happens next. An iteration lasts

    (c0 + c1 b + c2 sum(context) + cp prefill_tokens) gamma     (algorithms section 1)

and the context grows by b per iteration, so n iterations last a quadratic in n, which is solved,
not stepped: between two marks there is one event, whatever the number of tokens.

* Prefill. While prompts are pending, an iteration carries min(remaining, max_num_batched_tokens
  - b) of their tokens, in order of admission, and decoders advance by one. A prompt's last
  iteration gives its first token; then it joins V.
* Limits. At most `max_num_seqs` sequences run. A prompt is admitted when it fits what is left of
  the KV limit. When the next iteration would not fit, the sequence that comes last in order is
  preempted: its KV is dropped and what it had is prefilled again later (recompute).
* What happens during an iteration (an arrival, an abort, another limit) takes effect at its end.
* Suspension drops all KV at once; after resumption every sequence is prefilled again.
* Contention. gamma applies while other engines of the device run iterations: with k busy engines
  the factor is 1 + (gamma - 1)(k - 1), which is gamma for two. A change takes effect with the next
  iteration.

KV is counted in tokens; the unused end of a sequence's last block is not. A sequence that runs
alone is never preempted, since an engine's least limit holds one of full length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from maestroctl.domain.llm import IterationCost
from maestroctl.sim.loop import EventLoop, Handle

_EPSILON = 1e-9
"""Part of an iteration that counts as none: rounding of the solved quadratic."""
_FINISH, _OUTGROW = 0, 1
_Run = tuple[int, int, float, float, float]
"""Iterations in flight: n, prefill tokens, began, gamma, seconds of the first at gamma 1."""
_NO_RUN: _Run = (0, 0, 0.0, 1.0, 0.0)


class Sequence:
    """One stage inside an engine.

    Attributes:
        context: tokens in KV when it last joined or left the clock.
        left: output tokens still to come.
        todo: tokens still to prefill.
        base: context minus V while it decodes.
        epoch: raised whenever it leaves the clock, which outdates its marks.
    """

    __slots__ = (
        "base",
        "booked",
        "context",
        "doomed",
        "epoch",
        "joined",
        "key",
        "left",
        "name",
        "order",
        "started",
        "todo",
    )

    def __init__(
        self, name: str, key: float, prompt: int, output: int, booked: int, cached: int = 0
    ) -> None:
        self.name = name
        self.key = key
        self.order = 0
        self.context = max(1, prompt)
        self.left = max(1, output)
        self.todo = max(1, self.context - cached)
        self.booked = booked
        self.base = 0
        self.joined = 0
        self.epoch = 0
        self.started = False
        self.doomed = False


class Device:
    """Who runs iterations on one device at the moment."""

    __slots__ = ("busy", "engines")

    def __init__(self) -> None:
        self.engines: list[EngineModel] = []
        self.busy = 0

    def flip(self, engine: EngineModel, is_busy: bool) -> None:
        """`engine` begins or ceases to run iterations: the others get slower or faster."""
        self.busy += 1 if is_busy else -1
        for other in self.engines:
            if other is not engine:
                other.interrupt()


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
        self._prefilling: list[Sequence] = []  # in order of admission
        self._prefill_kv = 0  # context of those
        self._decoding: dict[str, Sequence] = {}
        self._sum_base = 0  # over `_decoding`
        self._marks: list[tuple[int, int, int, int, Sequence]] = []  # (V, order, kind, epoch, ..)
        self._v = 0
        self._orders = 0
        self._halted = False
        self._stepping = False
        self._busy = False
        self._pending: Handle | None = None  # end of the iterations in flight
        self._run = _NO_RUN
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
        return self._sum_base + self._v * len(self._decoding) + self._prefill_kv

    @property
    def kv_free_tokens(self) -> float:
        """KV that no sequence uses."""
        return self._kv_tokens - self.kv_used_tokens

    def tokens_left(self) -> dict[str, int]:
        """Output tokens still to come of every sequence that decodes now, by name."""
        n, prefill, began_s, gamma, first_s = self._run
        v = self._v
        if n and not prefill and self._pending is not None:
            v += min(n, int(self._iterations_in((self._loop.now_s - began_s) / gamma, first_s)))
        return {
            name: max(0, sequence.left - (v - sequence.joined))
            for name, sequence in self._decoding.items()
        }

    def submit(self, sequence: Sequence) -> None:
        """A stage comes in."""
        self._orders += 1
        sequence.order = self._orders
        self._all[sequence.name] = sequence
        heappush(self._waiting, (sequence.key, sequence.order, sequence))
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
        if name in self._decoding:
            held += sequence.left - self.tokens_left()[name]
        sequence.booked = max(tokens, held)
        if name in self._decoding:
            self._mark_outgrow(sequence)
            self.interrupt()
        return sequence.booked

    def abort(self, name: str) -> None:
        """Drop a stage; `on_gone` comes at the end of the iteration, or at once if it waits."""
        sequence = self._all[name]
        if name in self._decoding or sequence in self._prefilling:
            sequence.doomed = True
            self._num_doomed += 1
            self.interrupt()
        else:
            self._waiting = [entry for entry in self._waiting if entry[2] is not sequence]
            heapify(self._waiting)
            self._forget(sequence)
            self._on_gone(name)

    def set_kv_tokens(self, kv_tokens: float) -> None:
        """Another KV limit, from the next iteration on."""
        self._kv_tokens = kv_tokens
        self.interrupt()

    def suspend(self) -> None:
        """Freeze what is open and drop all KV; `resume` goes on. Not from within a callback."""
        self._halted = True
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
            self._settle_partial()
        for sequence in [*self._decoding.values(), *self._prefilling]:
            self._push_back(sequence)
        self._prefilling.clear()
        self._set_busy(False)

    def resume(self) -> None:
        """Go on after `suspend`; everything is prefilled again."""
        self._halted = False
        if self._waiting and not self._busy:
            self._wake_up()

    def interrupt(self) -> None:
        """Something changed: come to a boundary at the end of the iteration in flight."""
        n, prefill, began_s, gamma, first_s = self._run
        if self._pending is None or n <= 1 or prefill or self._stepping:
            return
        elapsed = (self._loop.now_s - began_s) / gamma
        done = max(1, math.ceil(self._iterations_in(elapsed, first_s) - _EPSILON))
        if done < n:
            self._pending.cancel()
            self._run = (done, 0, began_s, gamma, first_s)
            self._pending = self._loop.at(
                began_s + gamma * self._last_s(done, first_s), self._end_iterations
            )

    # --- iterations -----------------------------------------------------------------------------

    def _wake_up(self) -> None:
        """Begin after whatever else happens at this instant, so that it shares the iteration."""
        self._set_busy(True)
        self._run = _NO_RUN
        self._pending = self._loop.after(0.0, self._begin)

    def _begin(self) -> None:
        self._pending = None
        self._plan()

    def _plan(self) -> None:
        """At a boundary: admit, preempt where KV is short, and let the next iterations run."""
        self._admit()
        if not self._decoding and not self._prefilling:
            self._set_busy(False)
            return
        num_decoding = len(self._decoding)
        prefill = 0
        if self._prefilling:
            pending = 0
            room = max(1, self._max_tokens - num_decoding)
            for sequence in self._prefilling:
                pending += sequence.todo
                if pending >= room:
                    break
            prefill = min(pending, room)
        n = 1 if prefill else self._iterations_ahead()
        cost = self._cost
        first_s = cost.c0_s + cost.c1_s * num_decoding + cost.cp_s * prefill
        first_s += cost.c2_s * (self._sum_base + self._v * num_decoding)
        gamma = 1.0 + (cost.gamma - 1.0) * (self._device.busy - 1)
        now_s = self._loop.now_s
        self._run = (n, prefill, now_s, gamma, first_s)
        end_s = now_s + gamma * self._last_s(n, first_s)
        self._pending = self._loop.at(end_s, self._end_iterations)

    def _iterations_ahead(self) -> int:
        """Iterations until the next mark or until KV is full."""
        marks = self._marks
        while marks[0][3] != marks[0][4].epoch:
            heappop(marks)
        n = marks[0][0] - self._v
        num_decoding = len(self._decoding)
        if num_decoding > 1 and self._kv_tokens != math.inf:
            n = min(n, int(self._kv_tokens - self.kv_used_tokens) // num_decoding)
        return max(1, n)

    def _last_s(self, n: int, first_s: float) -> float:
        """Seconds of n iterations at gamma 1, the first of which lasts `first_s`."""
        return n * first_s + self._growth() * n * (n - 1) / 2

    def _iterations_in(self, seconds: float, first_s: float) -> float:
        """The inverse: how many iterations, fractions included, fit into `seconds`."""
        growth = self._growth()
        if growth <= 0.0:
            return seconds / first_s if first_s > 0 else math.inf
        b = first_s - growth / 2
        return (math.sqrt(b * b + 2 * growth * seconds) - b) / growth

    def _growth(self) -> float:
        """What each iteration lasts longer than the one before."""
        return self._cost.c2_s * len(self._decoding)

    def _end_iterations(self) -> None:
        n, prefill, began_s, _, _ = self._run
        self._pending = None
        self._stepping = True
        self.busy_s += self._loop.now_s - began_s
        if self._decoding:
            self._v += n
            self._reach_marks()
        if prefill:
            self._prefill(prefill)
        if self._num_doomed:
            self._drop_doomed()
        self._stepping = False
        if not self._halted:
            self._plan()

    def _reach_marks(self) -> None:
        marks, v = self._marks, self._v
        while marks and marks[0][0] <= v:
            _, _, kind, epoch, sequence = heappop(marks)
            if epoch != sequence.epoch:
                continue
            if kind == _OUTGROW:
                self._outgrow(sequence)
                continue
            self._leave_clock(sequence)
            sequence.left = 0
            self._finish(sequence)

    def _prefill(self, tokens: int) -> None:
        """Hand the tokens of this iteration out; prompts that are done give their first token."""
        ready = []
        for sequence in self._prefilling:
            taken = min(tokens, sequence.todo)
            sequence.todo -= taken
            tokens -= taken
            if sequence.todo == 0:
                ready.append(sequence)
            if tokens == 0:
                break
        if not ready:
            return
        self._prefilling = [sequence for sequence in self._prefilling if sequence.todo]
        for sequence in ready:
            self._prefill_kv -= sequence.context
            sequence.left -= 1
            sequence.context += 1
            if not sequence.started:
                sequence.started = True
                self._on_first_token(sequence.name)
            if sequence.left <= 0:
                self._finish(sequence)
            else:
                self._join_clock(sequence)

    def _finish(self, sequence: Sequence) -> None:
        self._forget(sequence)
        if sequence.doomed:
            self._num_doomed -= 1
            self._on_gone(sequence.name)
        else:
            self._on_finish(sequence.name)

    def _forget(self, sequence: Sequence) -> None:
        del self._all[sequence.name]

    # --- joining and leaving the clock ----------------------------------------------------------

    def _join_clock(self, sequence: Sequence) -> None:
        sequence.base = sequence.context - self._v
        sequence.joined = self._v
        self._sum_base += sequence.base
        self._decoding[sequence.name] = sequence
        self._mark(self._v + sequence.left, _FINISH, sequence)
        self._mark_outgrow(sequence)

    def _leave_clock(self, sequence: Sequence) -> None:
        del self._decoding[sequence.name]
        self._sum_base -= sequence.base
        gained = self._v - sequence.joined
        sequence.context += gained
        sequence.left -= gained
        sequence.epoch += 1

    def _mark(self, v: int, kind: int, sequence: Sequence) -> None:
        heappush(self._marks, (v, sequence.order, kind, sequence.epoch, sequence))

    def _mark_outgrow(self, sequence: Sequence) -> None:
        """Stop the clock when it passes its booking; a mark of an older booking says nothing."""
        if sequence.booked < sequence.context + sequence.left:
            self._mark(max(self._v, sequence.booked + 1 - sequence.base), _OUTGROW, sequence)

    def _outgrow(self, sequence: Sequence) -> None:
        tokens = sequence.base + self._v
        if tokens <= sequence.booked:
            return
        sequence.booked = max(tokens, self._on_outgrow(sequence.name, tokens))
        self._mark_outgrow(sequence)

    # --- limits ---------------------------------------------------------------------------------

    def _may_admit(self, sequence: Sequence) -> bool:
        num_running = len(self._decoding) + len(self._prefilling)
        if num_running == 0:
            return True
        needed = self.kv_used_tokens + sequence.context + len(self._decoding)
        return num_running < self._max_num_seqs and needed <= self._kv_tokens

    def _admit(self) -> None:
        while self._kv_tokens != math.inf and len(self._decoding) > 1 and self._next_overflows():
            self._preempt_last()
        while self._waiting and self._may_admit(self._waiting[0][2]):
            sequence = heappop(self._waiting)[2]
            self._prefilling.append(sequence)
            self._prefill_kv += sequence.context

    def _next_overflows(self) -> bool:
        return self.kv_used_tokens + len(self._decoding) > self._kv_tokens

    def _preempt_last(self) -> None:
        last = max(self._decoding.values(), key=lambda sequence: (sequence.key, sequence.order))
        self.num_preempted += 1
        self._push_back(last)

    def _push_back(self, sequence: Sequence) -> None:
        """Drop its KV; it waits to be prefilled again, with its place in the order."""
        if sequence.name in self._decoding:
            self._leave_clock(sequence)
        else:
            self._prefill_kv -= sequence.context
        sequence.todo = sequence.context
        heappush(self._waiting, (sequence.key, sequence.order, sequence))

    def _drop_doomed(self) -> None:
        doomed = [s for s in self._decoding.values() if s.doomed]
        doomed += [s for s in self._prefilling if s.doomed]
        for sequence in doomed:
            if sequence.name in self._decoding:
                self._leave_clock(sequence)
            else:
                self._prefilling.remove(sequence)
                self._prefill_kv -= sequence.context
            self._num_doomed -= 1
            self._forget(sequence)
            self._on_gone(sequence.name)

    def _settle_partial(self) -> None:
        """Count the whole iterations of the run in flight; the broken one is lost."""
        n, prefill, began_s, gamma, first_s = self._run
        if n == 0 or prefill:
            return
        elapsed = (self._loop.now_s - began_s) / gamma
        done = min(n - 1, math.floor(self._iterations_in(elapsed, first_s) + _EPSILON))
        self.busy_s += self._loop.now_s - began_s
        self._v += max(0, done)

    def _set_busy(self, is_busy: bool) -> None:
        if is_busy != self._busy:
            self._busy = is_busy
            self._device.flip(self, is_busy)

    def close(self) -> None:
        """The process ends: nothing happens here any more."""
        self._halted = True
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        self._set_busy(False)
        self._device.engines.remove(self)
