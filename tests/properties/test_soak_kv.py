"""The short form of ``make soak-kv``, and that the soak notices what it is for."""

import pytest

from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.node.books import MemoryBooks
from maestroctl.scheduler.node.room import Room
from maestroctl.scheduler.node.stages import can_forward
from maestroctl.testing.soak_kv import soak


@pytest.mark.parametrize(
    ("num_models", "operations"), [(3, 8_000), (8, 6_000), (20, 4_000), (50, 2_000)]
)
def test_eq_4_holds_after_every_operation_whatever_happens(num_models, operations):
    counts = soak(operations, num_models, seed=7_000)
    assert counts["operations"] == operations
    for happened in ("forwarded", "outgrown", "rebooked", "sleeps", "restarts", "budget"):
        assert counts[happened], happened


def test_soak_fails_when_nobody_looks_whether_memory_is_free(monkeypatch):
    monkeypatch.setattr(MemoryBooks, "fits", lambda *_: True)
    monkeypatch.setattr(Room, "shortage", lambda *_, **__: {})
    with pytest.raises((AssertionError, InvariantViolation)):
        soak(5_000, 3, seed=7_000)


def test_soak_fails_when_a_core_forgets_a_booking(monkeypatch):
    release = MemoryBooks.release
    follow = MemoryBooks.follow

    def forgets(self, engine_id, wanted):
        follow(self, engine_id, wanted)
        release(self, engine_id)

    monkeypatch.setattr(MemoryBooks, "follow", forgets)
    with pytest.raises((AssertionError, InvariantViolation)):
        soak(5_000, 3, seed=7_000)


def test_soak_fails_when_stages_enter_beyond_the_kv_limit(monkeypatch):
    def too_many(engine, kv_bytes):
        return can_forward(engine, kv_bytes) or len(engine.running) <= engine.max_batch

    monkeypatch.setattr("maestroctl.scheduler.node.stages.can_forward", too_many)
    monkeypatch.setattr("maestroctl.scheduler.node.validation.can_forward", too_many)
    with pytest.raises(AssertionError, match="limit"):
        soak(5_000, 3, seed=7_000)
