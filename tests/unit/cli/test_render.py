"""Every table fits 80 columns, also with long names."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console, RenderableType

from maestroctl.cli import render
from maestroctl.cli.checks.check import Check, Level

LONG = "organisation/a-model-with-a-rather-long-name-7b-instruct"

STAGE = {
    "stage_id": "s",
    "step": "summarise-everything",
    "role": "researcher",
    "model": LONG,
    "wait_s": 12.3,
    "activation": "start",
    "activation_s": 43.2,
    "ttft_s": 45.0,
    "output_tokens": 1234,
    "total_s": 83.0,
    "outcome": "finished",
}
JOB = {
    "job_id": "job-0123456789ab",
    "workflow": LONG,
    "class": "interactive",
    "status": "interrupted",
    "submitted_at": 1.0,
    "finished_at": 500.0,
}
ENGINE = {
    "model": LONG,
    "node": "a-node-in-the-cellar",
    "status": "falling_asleep",
    "pinned": True,
    "weights_bytes": 123 << 30,
    "kv_limit_bytes": 7 << 30,
    "slots": 257,
    "kept_slots": 12,
    "num_running": 12,
    "num_waiting": 345,
    "idle_s": 4000.0,
}
DEVICE = {
    "node": "a-node-in-the-cellar",
    "device": "cuda:0",
    "budget_bytes": 123 << 30,
    "booked_bytes": 123 << 30,
    "used_bytes": None,
}
MODEL = {"id": LONG, "max_model_len": None, "maestro": {"kind": "group", "models": [LONG, LONG]}}
CHECK = Check("machine", "coordinator", Level.MISSING, "found " * 30, "try " * 30)


def printed(what: RenderableType, width: int) -> str:
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(what)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "made",
    [
        render.stages_table([STAGE]),
        render.jobs_table([JOB]),
        render.models_table([ENGINE]),
        render.devices_table([DEVICE]),
        render.model_list_table([MODEL]),
        render.checks_table([CHECK]),
        render.values_table([("model[" + LONG + "].engine_args", "v" * 90, "fleet.toml:12")]),
    ],
    ids=["stages", "jobs", "models", "devices", "list", "checks", "values"],
)
def test_table_fits(made: RenderableType, width: int) -> None:
    lines = printed(made, width).splitlines()
    assert max(map(len, lines)) <= width


def test_nothing_is_lost_by_folding() -> None:
    text = printed(render.stages_table([STAGE]), 80)
    columns = "".join(text.split())
    assert all(part in text for part in ("12.3 s", "45.0 s", "1234"))
    assert LONG[:7] in columns


def test_fixes_stand_below_what_was_found() -> None:
    check = Check("machine", "disk", Level.WARN, "1 GiB free", "free some")
    text = printed(render.checks_table([check]), 80)
    assert text.index("1 GiB free") < text.index("-> free some")


@pytest.mark.parametrize(
    ("step", "label"),
    [
        ({"step": "code", "visit": 1, "item": 0, "num_items": 1}, "code"),
        ({"step": "code", "visit": 2, "item": 0, "num_items": 1}, "code #2"),
        ({"step": "note", "visit": 1, "item": 2, "num_items": 3}, "note [3]"),
    ],
)
def test_step_labels(step: dict[str, object], label: str) -> None:
    assert render.step_label(step) == label


@pytest.mark.parametrize(
    ("kept", "slots", "text"), [(0, 9, "–"), (2, 9, "2 of 9"), (0, 0, "–"), (2, 0, "–")]
)
def test_slots_kept_for_interactive_stages_are_shown_where_there_are_any(
    kept: int, slots: int, text: str
) -> None:
    assert render.kept_text(kept, slots) == text


def test_model_names_are_not_read_as_markup() -> None:
    row = {**ENGINE, "model": "a[b]c", "pinned": False}
    assert "a[b]c" in printed(render.models_table([row]), 100)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("made", "figures"),
    [
        (render.stages_table([STAGE]), ("12.3 s", "start 43.2 s", "45.0 s", "1234", "1m 23s")),
        (render.models_table([ENGINE]), ("123 GiB", "7.0 GiB", "12", "345", "1h 06m")),
        (render.devices_table([DEVICE]), ("123 GiB",)),
        (render.jobs_table([JOB]), ("8m 19s",)),
    ],
    ids=["stages", "models", "devices", "jobs"],
)
def test_a_figure_is_never_cut_however_long_the_names(
    made: RenderableType, figures: tuple[str, ...], width: int
) -> None:
    text = printed(made, width)
    for figure in figures:
        assert figure in text
