"""The kernel: what ends a run."""

from __future__ import annotations

from maestroctl.sim.loop import EventLoop


def test_a_run_of_ticks_alone_ends_when_patience_does() -> None:
    loop = EventLoop()
    seen: list[float] = []

    def tick() -> None:
        seen.append(loop.now_s)
        loop.tick(1.0, tick)

    loop.tick(1.0, tick)
    loop.at(3.5, lambda: None)
    loop.run(patience_s=2.0)
    assert seen == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_what_a_tick_brings_about_goes_on() -> None:
    loop = EventLoop()
    done: list[float] = []

    def tick() -> None:
        if not done:
            loop.after(0.5, lambda: done.append(loop.now_s))
        loop.tick(3.0, tick)

    loop.tick(3.0, tick)
    loop.run(patience_s=4.0)
    assert done == [3.5]


def test_a_cancelled_event_is_no_work() -> None:
    loop = EventLoop()
    loop.tick(1.0, lambda: None)
    loop.at(50.0, lambda: None).cancel()
    loop.run(patience_s=10.0)
    assert loop.num_events == 1
