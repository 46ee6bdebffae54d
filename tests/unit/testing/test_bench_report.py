from __future__ import annotations

import json
import math

from maestroctl.testing.bench.report import Row, Section, render, summary_line, to_json_line

SECTIONS = [
    Section("Speed", (Row("fast", "1 ms", "<= 2 ms", True), Row("other", "3 ms"))),
    Section("Size", (Row("big", "9 MB", "<= 2 MB", False), Row("odd", "-", "some", None))),
]


def test_every_target_is_shown_with_its_verdict() -> None:
    text = render("Title", SECTIONS, ["a note"])
    assert "target <= 2 ms: met" in text
    assert "target <= 2 MB: MISSED" in text
    assert "target some: not measured" in text
    assert text.endswith("a note")
    assert text.count("target") == 3


def test_summary_names_what_was_missed_and_what_was_not_measured() -> None:
    assert summary_line(SECTIONS) == "1 of 3 targets met; missed: big; not measured: odd"
    assert summary_line(SECTIONS[:1]) == "1 of 1 targets met"


def test_figures_are_one_line_of_json_without_what_is_no_number() -> None:
    line = to_json_line({"a": {"b": math.nan, 200: 1.23456789}, "c": (None, True, "x\ny")})
    assert "\n" not in line
    assert json.loads(line) == {"a": {"b": None, "200": 1.234568}, "c": [None, True, "x\ny"]}
