"""The scheduler of the stub engine on a clock that only these tests move."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from maestroctl.testing.stub_engine.faults import Faults
from maestroctl.testing.stub_engine.generation import Generation, Place, Sequence
from maestroctl.testing.stub_engine.options import parse_options


class FakeHandle:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """Time and timers, moved by ``advance``."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._timers: list[tuple[float, int, FakeHandle, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, callback: Callable[..., None], *args: Any) -> FakeHandle:
        handle = FakeHandle()
        self._count += 1
        heapq.heappush(self._timers, (when_s, self._count, handle, callback, args))
        return handle

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> FakeHandle:
        return self.call_at(self.now_s + delay_s, callback, *args)

    def call_soon(self, callback: Callable[..., None], *args: Any) -> FakeHandle:
        return self.call_at(self.now_s, callback, *args)

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= end_s + 1e-9:
            when_s, _, handle, callback, args = heapq.heappop(self._timers)
            if not handle.cancelled:
                self.now_s = max(self.now_s, when_s)
                callback(*args)
        self.now_s = end_s


class Recorder:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.ended: tuple[int, str] | None = None
        self.cut_after: int | None = None

    def on_tokens(self, produced: int) -> None:
        self.seen.append(produced)

    def on_end(self, produced: int, reason: str) -> None:
        assert self.ended is None
        self.ended = (produced, reason)

    def on_cut(self, produced: int) -> None:
        self.cut_after = produced


class Died(Exception):
    pass


class World:
    def __init__(self, *argv: str) -> None:
        self.loop = FakeLoop()
        self.usable = True
        options = parse_options(argv)
        self.faults = Faults.from_options(options)

        def die(reason: str) -> NoReturn:
            raise Died(reason)

        self.generation = Generation(
            options,
            self.faults,
            usable=lambda: self.usable,
            die=die,
            loop=self.loop,  # type: ignore[arg-type]
        )

    def submit(
        self, target: int, *, prompt: int = 8, priority: int = 0, name: str = "r"
    ) -> Sequence:
        sequence = Sequence(name, prompt, target, "stop", Recorder(), priority)
        self.generation.submit(sequence)
        return sequence

    def pause(self, mode: str, *, clear_cache: bool = False) -> None:
        asyncio.run(self.generation.pause(mode, clear_cache=clear_cache))


def recorder(sequence: Sequence) -> Recorder:
    assert isinstance(sequence.sink, Recorder)
    return sequence.sink


def test_without_an_interval_an_answer_is_there_at_once() -> None:
    sequence = World().submit(5)
    assert recorder(sequence).ended == (5, "stop")


def test_an_answer_of_no_tokens_ends() -> None:
    assert recorder(World("--token-interval", "1").submit(0)).ended is None
    assert recorder(World().submit(0)).ended == (0, "stop")


def test_an_answer_takes_prefill_plus_tokens_times_interval() -> None:
    world = World("--token-interval", "0.5", "--prefill-interval", "0.25")
    sequence = world.submit(4, prompt=8)
    world.loop.advance(2.0 + 3 * 0.5)
    assert recorder(sequence).seen == [1, 2, 3]
    world.loop.advance(0.5)
    assert recorder(sequence).ended == (4, "stop")


def test_sequences_are_paced_independently() -> None:
    world = World("--token-interval", "1")
    first = world.submit(3)
    world.loop.advance(0.5)
    second = world.submit(3)
    world.loop.advance(2.0)
    assert (first.produced, second.produced) == (2, 2)
    world.loop.advance(0.5)
    assert recorder(first).ended == (3, "stop")
    assert recorder(second).ended is None


def test_those_beyond_the_slots_wait_in_order() -> None:
    world = World("--token-interval", "1", "--max-num-seqs", "1")
    sequences = [world.submit(2) for _ in range(3)]
    assert world.generation.num_waiting == 2
    world.loop.advance(2.0)
    assert [s.place for s in sequences] == [Place.DONE, Place.RUNNING, Place.WAITING]


def test_priority_orders_the_queue_only_when_asked() -> None:
    for argv, first in ((["--scheduling-policy", "priority"], 2), ([], 1)):
        world = World("--token-interval", "1", "--max-num-seqs", "1", *argv)
        sequences = [world.submit(1), world.submit(1, priority=5), world.submit(1, priority=-5)]
        world.loop.advance(1.0)
        assert sequences[first].place is Place.RUNNING


def test_a_thousand_waiting_answers_of_no_time_do_not_recurse() -> None:
    world = World()
    world.pause("keep")
    sequences = [world.submit(1) for _ in range(2000)]
    world.generation.resume()
    assert all(recorder(s).ended for s in sequences)


def test_freezing_keeps_the_remaining_time_and_loses_no_token() -> None:
    world = World("--token-interval", "1")
    sequence = world.submit(3)
    world.loop.advance(1.75)
    world.pause("keep")
    late = world.submit(1)
    world.loop.advance(60.0)
    assert (sequence.produced, late.place) == (1, Place.WAITING)
    world.generation.resume()
    world.loop.advance(0.2)
    assert sequence.produced == 1
    world.loop.advance(0.1)
    assert sequence.produced == 2
    world.loop.advance(1.0)
    assert recorder(sequence).ended == (3, "stop")
    assert recorder(late).ended == (1, "stop")


def test_pausing_with_a_cleared_cache_costs_the_prefill_again() -> None:
    world = World("--token-interval", "1", "--prefill-interval", "0.5")
    sequence = world.submit(3, prompt=2)
    world.loop.advance(1.0 + 1.0)
    assert sequence.produced == 1
    world.pause("keep", clear_cache=True)
    assert (sequence.place, world.generation.used_blocks) == (Place.WAITING, 0)
    world.generation.resume()
    world.loop.advance(1.5 + 0.9)
    assert sequence.produced == 1
    world.loop.advance(0.1)
    assert sequence.produced == 2


def test_pausing_by_abort_ends_the_waiting_too() -> None:
    world = World("--token-interval", "1", "--max-num-seqs", "1")
    running, waiting = world.submit(5), world.submit(5)
    world.loop.advance(2.0)
    world.pause("abort")
    assert recorder(running).ended == (2, "abort")
    assert recorder(waiting).ended == (0, "abort")
    assert world.generation.num_waiting == 0


def test_waiting_for_the_running_lets_frozen_ones_go_on() -> None:
    world = World("--token-interval", "1")
    sequence = world.submit(2)
    world.pause("keep")

    async def drain() -> None:
        pausing = asyncio.ensure_future(world.generation.pause("wait", clear_cache=False))
        await asyncio.sleep(0)
        assert not pausing.done()
        later = world.submit(1)
        world.loop.advance(2.0)
        await pausing
        assert recorder(sequence).ended == (2, "stop")
        assert later.place is Place.WAITING

    asyncio.run(drain())


def test_abort_takes_ids_and_ignores_unknown_ones() -> None:
    world = World("--token-interval", "1", "--max-num-seqs", "2")
    a, b, c = (world.submit(5, name=name) for name in "abc")
    assert world.generation.abort(["a", "c", "nobody"]) == 2
    assert recorder(a).ended == (0, "abort")
    assert recorder(c).ended == (0, "abort")
    assert recorder(b).ended is None
    assert world.generation.abort() == 1


def test_a_client_that_leaves_frees_its_slot_and_is_told_nothing() -> None:
    world = World("--token-interval", "1", "--max-num-seqs", "1")
    gone, next_one = world.submit(5), world.submit(5)
    world.generation.finish(gone, None)
    assert recorder(gone).ended is None
    assert next_one.place is Place.RUNNING
    world.generation.finish(gone, None)  # twice changes nothing
    assert world.generation.used_blocks == next_one.blocks


def test_blocks_are_booked_as_a_sequence_grows() -> None:
    world = World("--token-interval", "1")
    sequence = world.submit(20, prompt=15)
    assert world.generation.used_blocks == 1
    world.loop.advance(2.0)
    assert world.generation.used_blocks == 2
    world.loop.advance(18.0)
    assert (sequence.place, world.generation.used_blocks) == (Place.DONE, 0)


def test_when_blocks_run_out_the_latest_is_preempted_and_finishes_later() -> None:
    # A pool of 4 blocks of 16 tokens.
    world = World("--token-interval", "1", "--kv-cache-memory-bytes", str(4 * 16 * 64))
    first, second = world.submit(30, prompt=16), world.submit(30, prompt=16)
    world.loop.advance(17.0)
    assert (first.place, second.place) == (Place.RUNNING, Place.WAITING)
    assert world.generation.num_preemptions == 1
    world.loop.advance(60.0)
    assert recorder(first).ended == (30, "stop")
    assert recorder(second).ended == (30, "stop")
    assert world.generation.used_blocks == 0


def test_generating_without_memory_kills_the_engine() -> None:
    world = World("--token-interval", "1")
    world.submit(5)
    world.usable = False
    with pytest.raises(Died):
        world.loop.advance(1.0)
    with pytest.raises(Died):
        World.submit(_without_memory(), 1)


def _without_memory() -> World:
    world = World()
    world.usable = False
    return world


@pytest.mark.parametrize("interval", ["0", "1"])
def test_the_process_dies_instead_of_the_nth_token(interval: str) -> None:
    world = World("--token-interval", interval, "--exit-at-token", "3")
    sequence = world.submit(5)
    with pytest.raises(Died, match="exit_at_token"):
        world.loop.advance(10.0)
    assert sequence.produced == 2
    assert recorder(World("--exit-at-token", "3").submit(2)).ended == (2, "stop")


@pytest.mark.parametrize("interval", ["0", "1"])
def test_a_stream_is_cut_or_stalls_after_n_tokens(interval: str) -> None:
    cut = World("--token-interval", interval, "--cut-stream-at", "3")
    cut_one = cut.submit(5)
    cut.loop.advance(10.0)
    assert recorder(cut_one).cut_after == 3
    stall = World("--token-interval", interval, "--stall-at-token", "2")
    stalled = stall.submit(5)
    stall.loop.advance(1000.0)
    assert (stalled.produced, stalled.place) == (2, Place.RUNNING)
    assert recorder(stalled).ended is None
