"""Eq 4 in the ledger: bookings respect budgets, readings are believed, sums add up."""

import random

import pytest

from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.node.books import MemoryBooks


def test_booking_up_to_the_budget_is_taken_and_one_byte_more_is_refused():
    books = MemoryBooks({"d": 10, "host": 5})
    books.book("a", {"d": 10})
    with pytest.raises(InvariantViolation, match="Eq 4"):
        books.book("b", {"d": 1})
    assert books.entries == {"a": {"d": 10}}
    assert books.free_bytes("d") == 0


def test_booking_replaces_what_the_engine_had():
    books = MemoryBooks({"d": 10, "host": 5})
    books.book("a", {"d": 8})
    books.book("a", {"d": 3, "host": 5})
    books.book("b", {"d": 7})
    assert books.booked == {"d": 10, "host": 5}


def test_refused_booking_changes_nothing_on_any_device():
    books = MemoryBooks({"d": 10, "e": 10})
    books.book("a", {"d": 4, "e": 4})
    with pytest.raises(InvariantViolation):
        books.book("a", {"d": 5, "e": 11})
    assert books.holding("a") == {"d": 4, "e": 4}


def test_lowered_budget_is_an_overrun_and_never_an_exception():
    books = MemoryBooks({"d": 10})
    books.book("a", {"d": 8})
    assert books.set_budget("d", 5)
    assert books.overrun == {"d": 3}
    assert not books.set_budget("d", 5)
    books.release("a")
    assert books.overrun == {}


def test_shrinking_is_possible_during_an_overrun_and_growing_is_not():
    books = MemoryBooks({"d": 10})
    books.book("a", {"d": 8})
    books.set_budget("d", 5)
    books.book("a", {"d": 7})
    assert not books.fits("a", {"d": 8})


def test_reading_may_take_the_books_above_the_budget():
    books = MemoryBooks({"d": 10})
    books.follow("a", {"d": 12})
    assert books.overrun == {"d": 2}
    books.validate()


def test_eq_4_holds_under_100_000_random_operations():
    rng = random.Random(4)
    budgets = {"cuda:0": 1000, "cuda:1": 700, "host": 500}
    books = MemoryBooks(budgets)
    refused = taken = 0
    for step in range(100_000):
        engine = f"e{rng.randrange(12)}"
        wanted = {d: rng.randrange(0, 300) for d in rng.sample(list(budgets), rng.randint(1, 3))}
        before = dict(books.booked)
        if rng.random() < 0.2:
            books.release(engine)
        else:
            fits = books.fits(engine, wanted)
            try:
                books.book(engine, wanted)
                taken += 1
                assert fits
            except InvariantViolation:
                refused += 1
                assert not fits
                assert books.booked == before
        for device, budget in budgets.items():
            assert 0 <= books.booked[device] <= budget
        if step % 1000 == 0:
            books.validate()
    assert min(refused, taken) > 10_000
