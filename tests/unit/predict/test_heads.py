"""Rules of the two phases and of the remaining total."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from maestroctl.predict.forest_arrays import LEAF_SAMPLES, ForestArrays, fit_forest
from maestroctl.predict.metrics import area_under_curve
from maestroctl.predict.model import PredictorModel, certain_tools
from maestroctl.predict.output_length import _conformal_offsets
from maestroctl.predict.remaining_length import remaining_targets
from maestroctl.predict.stage_table import make_table
from maestroctl.predict.tool_intent import fit_isotonic, fit_tool_intent
from maestroctl.predict.traces import TraceJob, TraceStage, fold_of_task
from maestroctl.predict.train import TrainConfig, train_model


def test_p_tool_is_exactly_zero_without_tools_and_one_when_required(
    model: PredictorModel, jobs: list[TraceJob]
) -> None:
    agent = jobs[0].stages[0].seen
    cases = {
        "none available": replace(agent, tools_available=0),
        "choice none": replace(agent, tool_choice="none"),
        "required": replace(agent, tool_choice="required"),
        "named": replace(agent, tool_choice="search"),
    }
    said = {name: model.predict([stage])[0].p_tool for name, stage in cases.items()}
    assert said == {"none available": 0.0, "choice none": 0.0, "required": 1.0, "named": 1.0}
    assert 0.0 < model.predict([agent])[0].p_tool < 1.0


def test_quantiles_rise_for_every_stage(model: PredictorModel, jobs: list[TraceJob]) -> None:
    for raw in model.predict([stage.seen for job in jobs for stage in job.stages]):
        for figures in raw.figures.values():
            assert 0 <= figures.q50 <= figures.q90
            assert figures.total >= figures.q50


def test_max_tokens_caps_both_quantiles(model: PredictorModel, jobs: list[TraceJob]) -> None:
    stage = replace(jobs[0].stages[4].seen, max_tokens=3)
    figures = next(iter(model.predict([stage])[0].figures.values()))
    assert figures.q50 <= figures.q90 <= 3


def test_a_stage_is_answered_alike_alone_and_in_a_batch(
    model: PredictorModel, jobs: list[TraceJob]
) -> None:
    stages = [stage.seen for job in jobs[:6] for stage in job.stages]
    together = model.predict(stages)
    assert [model.predict([stage])[0] for stage in stages] == together


def test_out_of_fold_probabilities_do_not_know_random_labels() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 6)).astype(np.float32)
    labels = rng.integers(0, 2, 600).astype(np.float64)
    fitted = fit_tool_intent(
        rows, labels, np.full(600, np.nan), np.arange(600) % 3, categories=[], num_threads=1
    )
    blind = area_under_curve(labels, fitted.out_of_fold)
    memory = area_under_curve(labels, fitted.model.predict(rows, np.full(600, np.nan)))
    assert blind is not None
    assert memory is not None
    assert abs(blind - 0.5) < 0.12
    assert memory > blind + 0.1


def test_repeated_runs_of_a_task_share_a_fold(jobs: list[TraceJob]) -> None:
    table = make_table(jobs)
    folds = table.folds(4)
    for task in {job.task for job in jobs}:
        rows = [jobs[number].task == task for number in table.job]
        assert len(set(folds[rows])) == 1
    assert fold_of_task("x", 4) == fold_of_task("x", 4)


def test_isotonic_maps_rise_and_never_promise_certainty() -> None:
    rng = np.random.default_rng(1)
    scores = rng.random(500)
    labels = (rng.random(500) < scores).astype(np.float64)
    calibrated = fit_isotonic(scores, labels)(np.linspace(0, 1, 50))
    assert (np.diff(calibrated) >= 0).all()
    assert calibrated.min() > 0
    assert calibrated.max() < 1


@pytest.mark.parametrize("labels", [[], [1.0, 1.0], [0.0, 0.0]], ids=["none", "all", "never"])
def test_isotonic_without_both_classes_answers_the_rate(labels: list[float]) -> None:
    values = np.array(labels)
    said = fit_isotonic(np.linspace(0, 1, len(values)), values)(np.array([0.3]))
    assert 0 < said[0] < 1


def test_conformal_offsets_cover_and_thin_workflows_use_the_pool() -> None:
    rng = np.random.default_rng(2)
    scores = np.concatenate([rng.normal(1.0, 1.0, 1000), rng.normal(0.0, 1.0, 20)])
    offsets = _conformal_offsets(scores, ["big"] * 1000 + ["thin"] * 20)
    assert set(offsets) == {"", "big"}
    assert 0.89 <= np.mean(scores[:1000] <= offsets["big"]) <= 0.92


def test_remaining_targets_sum_from_the_stage_on(jobs: list[TraceJob]) -> None:
    seen = jobs[0].stages[0].seen
    job = replace(jobs[0], stages=tuple(TraceStage(seen, n, None) for n in (1, None, 10, 100)))
    targets = remaining_targets([job])
    assert np.isnan(targets[:2]).all()
    assert targets[2:].tolist() == [110, 100]


def test_an_exported_forest_agrees_with_its_trees_by_hand() -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(400, 3)).astype(np.float32)
    target = rows[:, 0] * 2 + rng.normal(size=400) * 0.1
    forest = fit_forest(rows, target, num_trees=8, num_threads=1)
    for row in rows[:20]:
        pooled: list[float] = []
        for root in forest.roots:
            node = int(root)
            while forest.feature[node] >= 0:
                goes_left = row[forest.feature[node]] <= forest.threshold[node]
                node = int(forest.left[node] if goes_left else forest.right[node])
            pooled.extend(forest.samples[forest.left[node]])
        assert len(pooled) == 8 * LEAF_SAMPLES
        assert forest.predict(row[None, :])[0] == pytest.approx(np.quantile(pooled, 0.5))
    assert np.corrcoef(forest.predict(rows), target)[0, 1] > 0.95
    again = ForestArrays.from_arrays(forest.to_arrays())
    assert again.predict(rows, 0.9).tobytes() == forest.predict(rows, 0.9).tobytes()


def test_the_ablation_without_tool_intent_knows_only_what_is_certain(
    jobs: list[TraceJob], config: TrainConfig
) -> None:
    blind = train_model(jobs, replace(config, tool_intent=False, with_forest=False))
    stages = [stage.seen for stage in jobs[0].stages]
    assert [raw.p_tool for raw in blind.predict(stages)] == [0.5, 0.0, 0.5, 0.0, 0.5]
    assert np.isnan(certain_tools(stages)).tolist() == [True, False, True, False, True]
