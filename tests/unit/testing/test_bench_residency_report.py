from __future__ import annotations

import pytest

from maestroctl.testing.bench.report import Row
from maestroctl.testing.bench.residency_report import (
    Cycle,
    Plan,
    Seen,
    make_figures,
    make_notes,
    make_sections,
)


def seen(*, wake_s: float = 2.0, after: int = 3_500_000_000, same: bool = True) -> Seen:
    cycles = [Cycle(0.5, wake_s, 1_900_000_000, 3_500_000_000, True) for _ in range(19)]
    cycles.append(Cycle(0.6, wake_s, 1_900_000_000, after, same))
    return Seen(
        Plan(),
        cold_s=[30.0, 31.0, 40.0],
        cycles=cycles,
        text="once",
        before_bytes=3_500_000_000,
        after_bytes=after,
    )


def verdicts(one: Seen) -> dict[str, bool | None]:
    rows: list[Row] = [row for section in make_sections(one) for row in section.rows]
    return {row.name: row.met for row in rows if row.target}


def test_a_wake_is_compared_with_a_cold_start_by_their_medians() -> None:
    figures = make_figures(seen())
    assert figures["cold_over_wake"] == pytest.approx(15.5)
    assert figures["least_cold_over_wake"] == pytest.approx(15.0)
    assert figures["cycles"] == figures["same_text"] == 20
    assert figures["pss_asleep_mb"]["median"] == pytest.approx(1900)


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, set()),
        ({"wake_s": 3.2}, {"cold start / wake"}),
        ({"after": 3_700_000_000}, {"after 20 cycles"}),
        ({"after": 3_300_000_000}, {"after 20 cycles"}),
        ({"after": 3_600_000_000}, set()),
        ({"same": False}, {"same greedy text after a wake"}),
    ],
)
def test_each_target_is_judged_by_itself(changes: dict[str, object], missed: set[str]) -> None:
    result = verdicts(seen(**changes))  # type: ignore[arg-type]
    assert {name for name, met in result.items() if met is False} == missed
    assert len(result) == 3


def test_the_load_of_others_is_always_said() -> None:
    one = seen()
    one.others_cores = 1.25
    assert "1.25 of" in make_notes(one)[0]
