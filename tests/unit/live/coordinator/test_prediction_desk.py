"""What the desk tells of stages, and what it learns when they end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from maestroctl.domain.ids import JobId, ModelName, NodeName, StageId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.stage import PromptTokens, ServiceClass, StageDescriptor
from maestroctl.domain.stage_text import StageText
from maestroctl.live.coordinator import online_store
from maestroctl.live.coordinator.online_store import OnlineKeeper, load_online
from maestroctl.live.coordinator.prediction_desk import IDLE_S, PredictionDesk
from maestroctl.predict import group_table
from maestroctl.predict.raw_prediction import CandidateFigures, RawPrediction
from maestroctl.predict.recalibration import OnlineState
from maestroctl.predict.stage_input import StageInput
from maestroctl.scheduler.effects import DispatchStage, ResolveStage
from maestroctl.scheduler.events import StageEnded, StageProgressed
from maestroctl.store.database import Store
from maestroctl.store.journal import Journal
from maestroctl.telemetry.exposition import Telemetry

M = ModelName("m")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Models:
    """Says 40 tokens of whatever it is asked; nothing while `silent`."""

    def __init__(self) -> None:
        self.silent = False
        self.asked: list[StageInput] = []

    async def predict(self, stage: StageInput) -> dict[str, RawPrediction]:
        self.asked.append(stage)
        figures = {model: CandidateFigures(40, 90, 300) for model in stage.candidates}
        return {} if self.silent else {"model": RawPrediction(0.25, figures, {"m": 0.8})}


def stage(name: str, job: str = "j", candidates: tuple[str, ...] = ("m",)) -> StageDescriptor:
    return StageDescriptor(
        StageId(name),
        JobId(job),
        tuple(ModelName(model) for model in candidates),
        0.0,
        PromptTokens(1, 2, 3),
        workflow="w",
        role="r",
        tools_available=1,
    )


def run_stage(
    desk: PredictionDesk,
    name: str,
    tokens: int | None,
    outcome: Outcome = Outcome.FINISHED,
    job: str = "j",
) -> None:
    desk.begin(stage(name, job), StageText())
    send(desk, name)
    end(desk, name, tokens, outcome)


def send(desk: PredictionDesk, name: str) -> None:
    desk.dispatched(
        DispatchStage(
            StageId(name), 1, NodeName("n"), M, 1, 1, 3, 600, ServiceClass.INTERACTIVE, 0.0
        )
    )


def end(desk: PredictionDesk, name: str, tokens: int | None, outcome: Outcome) -> None:
    usage = None if tokens is None else Usage(3, tokens)
    desk.ended(StageEnded(StageId(name), 1, outcome, True, usage, tool_called=True))
    desk.resolved(ResolveStage(StageId(name), outcome, "", None))


def make_desk(models: Models | None = None, clock: Clock | None = None) -> PredictionDesk:
    return PredictionDesk(OnlineState(), Telemetry(), models, clock or Clock())


def test_fallback_is_the_prior_then_the_quantiles_of_what_ran_here() -> None:
    desk = make_desk()
    assert desk.begin(stage("new"), StageText()).source == "prior"
    for number in range(5):
        run_stage(desk, f"s{number}", 20)
    prediction = desk.begin(stage("next"), StageText())
    assert prediction.source == "profile"
    assert prediction.output_q50 == pytest.approx(20)


async def test_models_improve_on_the_fallback_and_silence_is_counted() -> None:
    models = Models()
    desk = make_desk(models)
    desk.begin(stage("s"), StageText())
    better = await desk.improve(StageId("s"))
    assert better is not None
    assert (better.source, better.output_q50, better.p_tool) == ("model", pytest.approx(40), 0.25)
    models.silent = True
    desk.begin(stage("t"), StageText())
    assert await desk.improve(StageId("t")) is None
    assert (desk.answered, desk.fallbacks) == (1, 1)
    assert await desk.improve(StageId("unknown")) is None


async def test_a_confidence_is_told_of_the_models_that_the_router_knows() -> None:
    desk = make_desk(Models())
    desk.begin(stage("s", candidates=("m", "unheard-of")), StageText())
    better = await desk.improve(StageId("s"))
    assert better is not None
    assert dict(better.confidence) == {"m": 0.8}
    assert set(better.total_tokens) == {"m", "unheard-of"}


async def test_later_stages_know_how_earlier_ones_of_the_job_ended() -> None:
    models = Models()
    desk = make_desk(models)
    run_stage(desk, "s1", 33)
    desk.begin(stage("s2"), StageText())
    await desk.improve(StageId("s2"))
    history = models.asked[-1].history
    assert (history.num_stages, history.prev_tool) == (1, 1.0)


def test_a_running_stage_past_its_quantile_is_one_miss_and_stays_one() -> None:
    desk = make_desk()
    for number in range(20):
        run_stage(desk, f"s{number}", 20)
    before = desk.state.summary().coverage_q90
    desk.begin(stage("long"), StageText())
    send(desk, "long")
    desk.progressed(StageProgressed(StageId("long"), 1, 500))
    at_once = desk.state.summary().coverage_q90
    desk.progressed(StageProgressed(StageId("long"), 1, 900))
    end(desk, "long", 1000, Outcome.FINISHED)
    assert before is not None
    assert at_once is not None
    assert at_once < before
    assert desk.state.summary().coverage_q90 == at_once


def test_a_cut_stage_teaches_its_lower_bound_an_invalid_one_nothing() -> None:
    desk = make_desk()
    run_stage(desk, "bad", 0, Outcome.INVALID)
    run_stage(desk, "unsent", None, Outcome.CANCELLED)
    assert desk.state.observed == 0
    desk.begin(stage("cut"), StageText())
    send(desk, "cut")
    desk.progressed(StageProgressed(StageId("cut"), 1, 7))
    end(desk, "cut", None, Outcome.CANCELLED)
    assert desk.state.observed == 1


def totals(desk: PredictionDesk) -> list[float]:
    groups = desk.state.to_json()["groups"]
    return [] if "*" not in groups else list(groups["*"]["totals"][1:])


def test_totals_are_learned_when_the_job_is_over_or_has_been_idle() -> None:
    clock = Clock()
    desk = make_desk(clock=clock)
    run_stage(desk, "a1", 10, job="a")
    run_stage(desk, "a2", 20, job="a")
    desk.sweep()
    assert totals(desk) == []
    desk.job_ended(JobId("a"), complete=True)
    assert len(totals(desk)) == 2
    run_stage(desk, "b1", 10, job="b")
    clock.now_s = IDLE_S
    desk.sweep()
    assert len(totals(desk)) == 3
    run_stage(desk, "c1", 10, job="c")
    desk.job_ended(JobId("c"), complete=False)
    assert len(totals(desk)) == 3


async def test_rows_of_forgotten_groups_are_deleted_while_serve_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_table, "MAX_GROUPS", 20)
    monkeypatch.setattr(online_store, "_MAX_EMPTY_ROWS", 30)
    desk = make_desk()
    with Store.open(f"sqlite:///{tmp_path}/state.db") as store:
        journal = Journal(store)
        keeper = OnlineKeeper(desk, journal, store)
        for number in range(200):
            name = f"{number:03}"
            desk.begin(replace(stage(name), workflow=f"w{number}"), StageText())
            send(desk, name)
            end(desk, name, 20, Outcome.FINISHED)
            await keeper.save()
        await journal.flush()
        assert len(store.metas("online/")) <= 20 + 30 + 10
        await keeper.close()
        await journal.close()


async def test_figures_survive_in_the_store_and_forgotten_ones_stay_forgotten(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    notes: list[str] = []
    desk = make_desk()
    for number in range(6):
        run_stage(desk, f"s{number}", 20)
    with Store.open(url) as store:
        journal = Journal(store)
        keeper = OnlineKeeper(desk, journal, store)
        await keeper.save()
        await journal.flush()
        again = load_online(store, notes.append)
        assert json.dumps(again.to_json(), sort_keys=True) == json.dumps(
            desk.state.to_json(), sort_keys=True
        )
        assert desk.state.reset(workflow="w", role="r") > 0
        await keeper.close()
        await journal.close()
    with Store.open(url) as store:
        kept = load_online(store, notes.append).to_json()["groups"]
        assert kept
        assert not [name for name in kept if name.startswith("w\x1fr")]
        assert "" not in store.metas("online/").values()
    assert notes == []
