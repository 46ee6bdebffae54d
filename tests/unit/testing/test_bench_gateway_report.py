from __future__ import annotations

import json
from collections import Counter

import pytest

from maestroctl.testing.bench.gateway_report import make_figures, make_sections
from maestroctl.testing.bench.gateway_runs import (
    BARE,
    DIRECT,
    LITELLM,
    OURS,
    Growth,
    Load,
    Measured,
    Sizes,
    Wave,
    whole_request,
)
from maestroctl.testing.bench.report import Row, render, to_json_line
from maestroctl.testing.bench.stats import Summary
from maestroctl.testing.bench.streams import StreamResult


def latency(median: float, p99: float) -> Summary:
    return Summary(100, median, median, median, p99, p99, p99)


def wave(**changes: object) -> Wave:
    result = StreamResult(completed=10, chunks=400, first_chunk_s=[0.1, 0.2], duration_s=8.0)
    result.most_open = 10
    values: dict[str, object] = {
        "streams": 10,
        "result": result,
        "cpu_s": 4.0,
        "rss_before_bytes": 100_000_000,
        "rss_after_bytes": 150_000_000,
        "descriptors_after": 40,
    }
    return Wave(**{**values, **changes})  # type: ignore[arg-type]


def measured() -> Measured:
    """Three repeats in which everything is as it should be."""
    seen = Measured(Sizes(repeats=3), num_sent=100, num_answered=100, first_descriptors=40)
    for direct, ours in ((0.2, 0.9), (0.2, 0.8), (0.3, 1.2)):
        seen.latencies_ms.append(
            {
                DIRECT: latency(direct, 1.0),
                BARE: latency(direct + 0.6, 5.0),
                OURS: latency(ours, 6.0),
            }
        )
        seen.loads.append(
            {
                OURS: Load(2000.0, latency(14, 30)),
                BARE: Load(3500.0, latency(9, 20)),
                LITELLM: Load(80.0, latency(400, 600)),
            }
        )
    seen.waves = [wave(), wave(rss_before_bytes=150_000_000, rss_after_bytes=152_000_000)]
    seen.growth = Growth(10_000, 152_000_000, 153_000_000)
    seen.most_rss_bytes = 160_000_000
    return seen


def judged(seen: Measured) -> dict[str, Row]:
    sections, _ = make_sections(seen)
    return {row.name: row for section in sections for row in section.rows if row.target}


def test_added_latency_is_taken_against_the_direct_call_of_the_same_repeat() -> None:
    figures = make_figures(measured())
    assert figures["added_latency_ms"] == pytest.approx({"median": 0.7, "p99": 5.0})
    assert figures["p99_above_bare_ms"]["median"] == pytest.approx(1.0)
    assert figures["litellm_ratio"] == pytest.approx(25.0)


def test_all_targets_are_met_when_all_is_well() -> None:
    rows = judged(measured())
    assert {row.verdict for row in rows.values()} == {"met"}
    assert len(rows) == 10


def slow(seen: Measured) -> None:
    seen.latencies_ms = [{**one, OURS: latency(2.0, 9.0)} for one in seen.latencies_ms]


def few(seen: Measured) -> None:
    seen.loads = [{**one, OURS: Load(1400.0, latency(20, 40))} for one in seen.loads]


def lost(seen: Measured) -> None:
    result = StreamResult(completed=8, duration_s=8.0)
    result.refused, result.broken = Counter({429: 1}), Counter({"timeout": 1})
    seen.waves.append(wave(result=result, rss_after_bytes=150_000_000))


def hungry(seen: Measured) -> None:
    seen.waves.append(wave(cpu_s=16.0, rss_after_bytes=190_000_000, descriptors_after=44))
    seen.waves.append(seen.waves[-1])
    seen.growth = Growth(10_000, 150_000_000, 170_000_000)
    seen.most_rss_bytes = 210_000_000


@pytest.mark.parametrize(
    ("spoil", "missed"),
    [
        (slow, {"maestroctl adds, median", "p99 above the bare proxy's"}),
        (few, {"throughput, maestroctl", "maestroctl / LiteLLM"}),
        (lost, {"completed or cleanly refused"}),
        (
            hungry,
            {
                "processor, both hops",
                "growth since the first wave",
                "descriptors left",
                "highest reading",
                "over 10,000 requests",
            },
        ),
    ],
)
def test_a_missed_target_is_named(spoil: object, missed: set[str]) -> None:
    seen = measured()
    assert callable(spoil)
    spoil(seen)
    assert {name for name, row in judged(seen).items() if row.met is False} == missed


def test_a_refused_stream_is_a_clean_end_and_a_broken_one_is_not() -> None:
    seen = measured()
    lost(seen)
    streams = make_figures(seen)["streams"]
    assert (streams["sent"], streams["completed"]) == (30, 28)
    assert streams["refused"] == {"429": 1}
    assert streams["broken"] == {"timeout": 1}
    assert streams["first_chunk_p99_ms"] is None


def test_without_litellm_its_figures_are_null_and_the_reason_is_said() -> None:
    seen = measured()
    seen.loads = [{name: one[name] for name in (OURS, BARE)} for one in seen.loads]
    seen.litellm_problem = "no network"
    figures = json.loads(to_json_line(make_figures(seen)))
    assert figures["litellm_ratio"] is None
    assert figures["requests_per_s"]["litellm"] is None
    _, notes = make_sections(seen)
    assert any("no network" in note for note in notes)
    assert judged(seen)["maestroctl / LiteLLM"].verdict == "not measured"


def test_requests_without_an_answer_are_mentioned() -> None:
    seen = measured()
    seen.num_answered = 97
    _, notes = make_sections(seen)
    assert any("3 of 100 requests" in note for note in notes)


def test_the_request_of_the_closed_loop_has_a_body_of_one_kibibyte() -> None:
    one, other = whole_request("alpha", 1), whole_request("alpha", 2)
    assert one != other
    for request in (one, other):
        body = request.partition(b"\r\n\r\n")[2]
        assert len(body) == 1024
        assert json.loads(body)["model"] == "alpha"


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    sections, notes = make_sections(measured())
    assert max(len(line) for line in render("Title", sections, notes).splitlines()) <= 80
