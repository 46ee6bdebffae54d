"""Any folder of the format is evaluated: what cannot be judged is left out with a note."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maestroctl.errors import ConfigError
from maestroctl.predict import evaluate, learning_curve
from maestroctl.predict.metrics import r_squared
from maestroctl.predict.refit import MIN_STAGES
from maestroctl.predict.shipped import load_shipped
from maestroctl.predict.traces import folds_of_tasks, load_trace_jobs
from maestroctl.predict.train import TrainConfig, train_model
from tests.unit.predict.conftest import make_rows

Rows = list[dict[str, Any]]
_OPTIONAL = (
    "role",
    "n_roles_in_app",
    "invocation_index",
    "tools_available",
    "tool_call",
    "system_text",
    "prompt_tail",
    "prompt_tokens",
    "tokens_src",
    "model",
    "topology",
    "job_success",
)


def rows_of(count: int, app: str = "shop", **fixed: Any) -> Rows:
    """Rows of some jobs, each with these fields."""
    return [row | fixed for number in range(count) for row in make_rows(number, app=app)]


def _last_unknown(rows: Rows) -> Rows:
    return [r | {"output_tokens": None} if r["stage_index"] == 4 else r for r in rows]


def _one_tool_answer(rows: Rows) -> Rows:
    return [r | {"tool_call": r["tool_call"] if k == 0 else None} for k, r in enumerate(rows)]


def _bare(rows: Rows) -> Rows:
    return [{name: r[name] for name in r if name not in _OPTIONAL} for r in rows]


FOLDERS: dict[str, Callable[[], dict[str, Rows]]] = {
    "one unseen application": lambda: {"a": rows_of(30)},
    "sources that share an application": lambda: {
        "a": rows_of(15, source="s1"),
        "b": [r | {"job_id": r["job_id"] + "b"} for r in rows_of(15, source="s2")],
    },
    "an application of few rows": lambda: {"a": rows_of(20), "b": rows_of(2, "bank")},
    "few rows only": lambda: {"a": rows_of(3), "b": rows_of(3, "bank")},
    "two tasks": lambda: {"a": rows_of(4)},
    "no total known": lambda: {
        "a": _last_unknown(rows_of(20)),
        "b": _last_unknown(rows_of(20, "bank")),
    },
    "no total known in one application": lambda: {
        "a": _last_unknown(rows_of(20)),
        "b": rows_of(20, "bank"),
    },
    "no total known in the only application": lambda: {"a": _last_unknown(rows_of(30))},
    "one total known": lambda: {"a": [*make_rows(0), *_last_unknown(rows_of(20)[5:])]},
    "one length known in a fold": lambda: {
        "a": [
            r | {"output_tokens": r["output_tokens"] if k in (0, 13, 27) else None}
            for k, r in enumerate(rows_of(12))
        ]
    },
    "no tools": lambda: {"a": rows_of(20, tools_available=0, tool_call=False)},
    "no tool answer known": lambda: {"a": rows_of(20, tool_call=None)},
    "one tool answer known": lambda: {"a": _one_tool_answer(rows_of(20))},
    "tools always called": lambda: {"a": rows_of(20, tools_available=1, tool_call=True)},
    "no text": lambda: {"a": rows_of(20, system_text="", prompt_tail="")},
    "the same text everywhere": lambda: {"a": rows_of(20, system_text="", prompt_tail="go")},
    "text without words": lambda: {"a": rows_of(20, system_text="...", prompt_tail="?! ")},
    "bare rows": lambda: {"a": _bare(rows_of(20)), "b": _bare(rows_of(20, "bank"))},
    "a source without lengths": lambda: {
        "a": rows_of(20, output_tokens=None),
        "b": rows_of(20, "bank"),
    },
    "lengths in one task only": lambda: {
        "a": [
            r | {"output_tokens": r["output_tokens"] if k < 10 else None}
            for k, r in enumerate(rows_of(10))
        ]
    },
    "constant lengths": lambda: {"a": rows_of(20, output_tokens=7)},
    "no output": lambda: {"a": rows_of(20, output_tokens=0), "b": rows_of(20, "bank")},
    "jobs of one stage": lambda: {"a": [r for r in rows_of(60) if r["stage_index"] == 0]},
    "names of any letters": lambda: {
        "a": rows_of(20, app="ä/ü 日本", role="röle", prompt_tail="\ud800 \x00 日本" * 50)
    },
    "NaN for null": lambda: {
        "a": [
            r | {"output_tokens": math.nan, "tool_call": math.nan} if k == 3 else r
            for k, r in enumerate(rows_of(20))
        ]
    },
}


def write(folder: Path, files: dict[str, Rows], after: str = "") -> Path:
    """A folder of stage traces."""
    for name, rows in files.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"stages_{name}.jsonl").write_text(text + after)
    return folder


@pytest.fixture(autouse=True)
def _loads_the_shipped_artifact_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_curve, "load_shipped", _shipped)


_shipped = functools.cache(load_shipped)


def _evaluate(folder: Path, config: TrainConfig, **more: Any) -> dict[str, Any]:
    jobs = load_trace_jobs(folder)
    told = evaluate.evaluate_jobs(
        jobs, config=config, num_folds=2, online=True, latency_stages=0, **more
    )
    json.dumps(told, allow_nan=False)
    return told


@pytest.mark.parametrize("kind", FOLDERS)
def test_every_application_of_any_folder_is_in_every_part_of_the_report(
    kind: str, tmp_path: Path, config: TrainConfig
) -> None:
    files = FOLDERS[kind]()
    told = _evaluate(write(tmp_path, files), config, with_baselines=True, intervals=True)
    rows = [row for own in files.values() for row in own]
    apps = {row["app"] for row in rows}
    assert set(told["per_app"]) == set(told["learning_curve"]) == apps
    assert set(told["learning_curve_base"]) == apps
    assert told["stages"] == len(rows)
    known = {r["app"] for r in rows if isinstance(r["output_tokens"], int)}
    assert {app for app, points in told["learning_curve"].items() if points} == known
    for app in known:
        for point in told["learning_curve"][app]:
            assert point["mae"] >= 0
            assert 0 <= point["coverage"] <= 1
    for app in apps - known:
        assert any(app in note for note in told["notes"])
    if kind == "constant lengths":
        assert told["length"]["r2"] is None and told["length"]["r2_log"] is None  # noqa: PT018


def test_an_unseen_application_alone_is_replayed_against_the_shipped_artifact(
    tmp_path: Path, config: TrainConfig
) -> None:
    told = _evaluate(write(tmp_path, {"a": rows_of(30)}), config)
    assert told["learning_curve_base"] == {"shop": "shipped artifact"}
    assert "replayed against shipped artifact: shop" in told["notes"]
    assert told["learning_curve"]["shop"][0]["mae_without_learning"] is not None


@pytest.mark.parametrize("seen", ["application", "task"])
def test_what_the_shipped_artifact_was_trained_on_starts_from_nothing(
    seen: str, tmp_path: Path, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = load_trace_jobs(write(tmp_path, {"a": rows_of(30)}))
    saw = train_model(jobs[:10], config)
    if seen == "task":
        saw.about["apps"].clear()
    monkeypatch.setattr(learning_curve, "load_shipped", lambda: saw)
    told = _evaluate(tmp_path, config)
    assert told["learning_curve_base"] == {"shop": "nothing"}
    first, *_, last = told["learning_curve"]["shop"]
    assert first["mae_without_learning"] is None
    assert last["mae"] < first["mae"], "running figures and refits learn"


def test_other_sources_are_the_base_only_when_they_hold_enough_to_fit_on(
    tmp_path: Path, config: TrainConfig
) -> None:
    few = MIN_STAGES // 5 - 1
    told = _evaluate(write(tmp_path, {"a": rows_of(20), "b": rows_of(few, "bank")}), config)
    bases = told["learning_curve_base"]
    assert bases == {"shop": "shipped artifact", "bank": "other sources of the folder"}


def test_an_artifact_is_replayed_only_on_tasks_it_was_not_trained_on(
    tmp_path: Path, config: TrainConfig
) -> None:
    jobs = load_trace_jobs(write(tmp_path, {"a": rows_of(30)}))
    told = _evaluate(tmp_path, config, model=train_model(jobs[:20], config))
    assert told["trained_jobs_left_out"] == 20
    assert told["learning_curve"]["shop"][0]["stages"] == told["stages"] == 50
    assert "other tasks" in told["learning_curve_base"]["shop"]


def test_first_runs_leave_out_what_repeats_a_task(tmp_path: Path, config: TrainConfig) -> None:
    point = _evaluate(write(tmp_path, {"a": rows_of(30)}), config)["learning_curve"]["shop"][0]
    assert point["stages"] == 150
    assert point["first_runs"]["stages"] == 75, "two runs per task"
    assert point["first_runs"]["mae"] != point["mae"]


def test_a_folder_of_which_nothing_can_be_judged_is_one_sentence(
    tmp_path: Path, config: TrainConfig
) -> None:
    with pytest.raises(ConfigError, match="too few output lengths"):
        _evaluate(write(tmp_path, {"a": rows_of(10, output_tokens=None)}), config)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("output_tokens", "unknown"),
        ("output_tokens", -1),
        ("output_tokens", math.inf),
        ("output_tokens", True),
        ("output_tokens", [3]),
        ("prompt_tokens", "many"),
        ("stage_index", "first"),
        ("tool_call", "yes"),
        ("tools_available", -2),
        ("prompt_tail", {"a": 1}),
        ("job_id", ["x"]),
        ("app", 1.5),
    ],
)
def test_a_bad_value_is_one_sentence_with_file_and_line(
    field: str, value: Any, tmp_path: Path
) -> None:
    rows = rows_of(2)
    rows[3][field] = value
    write(tmp_path, {"a": rows})
    with pytest.raises(ConfigError, match=field) as caught:
        load_trace_jobs(tmp_path)
    assert caught.value.line == 4
    assert caught.value.file == str(tmp_path / "stages_a.jsonl")


@pytest.mark.parametrize("value", [None, math.nan])
def test_null_and_nan_labels_are_unknown(value: Any, tmp_path: Path) -> None:
    rows = rows_of(1, output_tokens=value, tool_call=value, model=value, role=value)
    (job,) = load_trace_jobs(write(tmp_path, {"a": rows}))
    assert {(s.output_tokens, s.tool_called, s.seen.role) for s in job.stages} == {(None, None, "")}


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    assert len(load_trace_jobs(write(tmp_path, {"a": rows_of(2)}, after="\n  \n"))) == 2


@pytest.mark.parametrize("num_tasks", [1, 2, 3, 4, 9, 300])
@pytest.mark.parametrize("seed", range(5))
def test_every_fold_is_filled_that_can_be_and_a_task_is_in_one(num_tasks: int, seed: int) -> None:
    tasks = [f"t{k % num_tasks}" for k in range(3 * num_tasks)]
    folds = folds_of_tasks(tasks, 4, seed=seed)
    assert len(set(folds)) == min(4, num_tasks)
    assert len(set(zip(tasks, folds, strict=True))) == num_tasks


def test_r_squared_is_undefined_where_values_differ_by_rounding_only() -> None:
    same = np.full(500, math.log1p(7))
    assert r_squared(same, same + 1.0) is None
    assert r_squared(same * (1 + 1e-15 * np.arange(500)), same + 1.0) is None
    assert r_squared(np.array([1e6, 1e6 + 1]), np.array([1e6, 1e6 + 1])) == 1.0
