"""A refit on own history is swapped in only if it is better on the newest jobs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from maestroctl.predict.explain import explain_stage
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.recalibration import OnlineState
from maestroctl.predict.refit import predict_medians, refit_if_better
from maestroctl.predict.replay import after, replay_stream
from maestroctl.predict.train import TrainConfig, local_config, train_model
from tests.unit.predict.conftest import make_jobs


def test_a_worse_refit_is_not_swapped_in(model: PredictorModel, config: TrainConfig) -> None:
    jobs = make_jobs(60, app="new")
    perfect = [[float(s.output_tokens or 0) for s in job.stages] for job in jobs]
    result = refit_if_better(jobs, perfect, model.builder.embedder.encoder, config)
    assert result.model is None
    assert result.compared is not None
    assert result.compared.told == 0.0 < result.compared.refitted


def test_a_better_refit_is_swapped_in(model: PredictorModel, config: TrainConfig) -> None:
    jobs = make_jobs(60, app="new")
    poor = [[5000.0 for _ in job.stages] for job in jobs]
    result = refit_if_better(jobs, poor, model.builder.embedder.encoder, config)
    assert result.model is not None
    assert np.median(predict_medians(result.model, jobs)) < 200
    compared = result.compared
    assert compared is not None
    assert compared.refitted < compared.told
    assert compared.stages == sum(len(job.stages) for job in jobs[-15:])


def test_a_refit_waits_for_enough_stages(model: PredictorModel, config: TrainConfig) -> None:
    jobs = make_jobs(6, app="new")
    poor = [[5000.0 for _ in job.stages] for job in jobs]
    result = refit_if_better(jobs, poor, model.builder.embedder.encoder, config)
    assert result.model is None
    assert result.compared is None


def test_a_replay_learns_an_unseen_application(model: PredictorModel, config: TrainConfig) -> None:
    jobs = make_jobs(120, app="new")
    stream = replay_stream(model, jobs, OnlineState(), config)
    late = after(stream, 60)
    seen = stream.table.tokens[late]
    told = np.abs(seen - stream.q50[late]).mean()
    assert told < np.abs(seen - np.median(seen)).mean()
    assert 0.8 <= (seen <= stream.q90[late]).mean() <= 0.97


def test_a_replay_never_looks_ahead(model: PredictorModel, config: TrainConfig) -> None:
    jobs = make_jobs(40, app="new")
    whole = replay_stream(model, jobs, OnlineState(), config)
    part = replay_stream(model, jobs[:20], OnlineState(), config)
    size = len(part.q50)
    assert whole.q50[:size].tobytes() == part.q50.tobytes()
    assert whole.q90[:size].tobytes() == part.q90.tobytes()
    assert whole.total[:size].tobytes() == part.total.tobytes()


def test_a_prediction_can_be_explained(model: PredictorModel) -> None:
    stage = make_jobs(1)[0].stages[2].seen
    told = explain_stage(model, stage, OnlineState())
    json.dumps(told, allow_nan=False)
    assert told["final"]["q50"] <= told["final"]["q90"]
    assert len(told["moved_by"]) == 8
    q50 = (1 + told["usual"]) * np.prod([part["factor"] for part in told["moved_by"]]) - 1
    assert q50 > 0


def test_a_model_fitted_without_text_does_not_read_it_when_it_serves(
    model: PredictorModel, config: TrainConfig
) -> None:
    jobs = [
        replace(job, stages=tuple(replace(s, seen=s.seen.without_text()) for s in job.stages))
        for job in make_jobs(40, app="new")
    ]
    kept = json.dumps(jobs[0].stages[3].seen.to_json())
    assert "please" not in kept
    assert "shoes" not in kept
    own = local_config(replace(config, reads_text=False))
    local = train_model(jobs, own, encoder=model.builder.embedder.encoder)
    live = make_jobs(41, app="new")[-1].stages[3].seen
    assert live.tail
    assert local.predict([live]) == local.predict([live.without_text()])
