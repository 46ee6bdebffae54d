"""When the old generation is walked, and that nothing else does it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from maestroctl.live.garbage import GROWTH_BYTES, QUIET_OBJECTS, Tidy, calm, resident_bytes


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collector")
def test_no_amount_of_new_objects_walks_the_old_generation() -> None:
    calm()
    walked: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            walked.append(info["generation"])

    gc.callbacks.append(note)
    kept = [[] for _ in range(200_000)]  # type: ignore[var-annotated]
    gc.callbacks.remove(note)
    assert len(kept) == 200_000
    assert set(walked) == {0, 1}


@pytest.mark.parametrize(
    ("live", "grown", "walks"),
    [
        pytest.param(0, 0, True, id="hardly anything is alive"),
        pytest.param(QUIET_OBJECTS + 1, 0, False, id="a deep queue"),
        pytest.param(QUIET_OBJECTS + 1, GROWTH_BYTES, True, id="a deep queue, and memory grows"),
    ],
)
def test_the_old_generation_is_walked_when_it_is_cheap_or_due(
    live: int, grown: int, walks: bool
) -> None:
    memory = [1 << 20]
    tidy = Tidy(lambda: live, lambda: memory[0])
    memory[0] += grown
    assert tidy.look() is walks
    assert not Tidy(lambda: QUIET_OBJECTS + 1, lambda: memory[0]).look()


def test_a_process_holds_some_memory() -> None:
    assert resident_bytes() > 1 << 20
