"""`measure` on stub engines: gamma beside a second engine, and what a plan leaves out."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSource, ModelSpec
from maestroctl.live.profile import measure as module
from maestroctl.live.profile.measure import Progress, find_subject, fit_plan, measure
from maestroctl.live.profile.measurements import Measurements
from maestroctl.live.profile.plan import ProfilePlan
from maestroctl.live.profile.record import make_record
from maestroctl.testing.bench.stub_fleet import write_tiny_model

PLAN = replace(
    ProfilePlan.quick(), batches=(1, 4), long_shapes=(), prefill_tokens=(32,), least_rounds=1,
    most_rounds=1, sleep_cycles=1, second_copy=True, most_batch=4,
)  # fmt: skip


async def stub_subject(tmp_path: Path, *flags: str) -> module.Subject:
    engine = EngineSpec(
        "stub",
        EngineKind.VLLM_CPU,
        python=sys.executable,
        entrypoint="maestroctl.testing.stub_engine",
        version="0.32.0",
        args=("--token-interval", "0.005", *flags),
    )
    source = ModelSource.parse(f"path:{write_tiny_model(tmp_path / 'tiny')}")
    model = ModelSpec(
        ModelName("m"), source, "stub", max_model_len=1024, max_batch=4, kv_cache_bytes=16 << 20
    )
    return await find_subject(model, engine, None)


async def test_gamma_is_decoding_beside_a_busy_engine_over_decoding_alone(tmp_path: Path) -> None:
    subject = await stub_subject(tmp_path)
    plan, seen, told = fit_plan(subject, PLAN), Measurements(), list[Progress]()
    await measure(subject, plan, seen, told.append)
    assert len(seen.slowdowns) == 2
    # Stubs sleep between their tokens, so two of them do not slow each other much.
    assert all(0.5 < slowdown < 2.0 for slowdown in seen.slowdowns)
    record = make_record(subject, seen, plan)
    assert record is not None
    assert record.gamma_measured
    assert record.costs.iteration.gamma >= 1.0
    assert [progress.step for progress in told][-1] == "done"
    assert told[-1].part == 1.0
    assert all(progress.left_s >= 0 and 0 <= progress.part <= 1 for progress in told)


async def test_without_room_for_a_second_engine_gamma_is_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.gpu, "read_free_host_bytes", lambda: 1 << 20)
    subject = await stub_subject(tmp_path)
    plan, seen = fit_plan(subject, PLAN), Measurements()
    await measure(subject, plan, seen)
    record = make_record(subject, seen, plan)
    assert record is not None
    assert not record.gamma_measured
    assert record.costs.iteration.gamma == subject.estimate.iteration.gamma


async def test_an_engine_that_takes_no_more_is_measured_up_to_there(tmp_path: Path) -> None:
    subject = await stub_subject(tmp_path)
    small = replace(subject, model=replace(subject.model, kv_cache_bytes=1 << 20))
    estimate = replace(subject.estimate, kv_pool_bytes=512 * 128 * 3, max_model_len=128)
    plan = fit_plan(replace(small, estimate=estimate), ProfilePlan.quick())
    assert plan.batches == (1, 2)
    assert plan.long_shapes == ()
