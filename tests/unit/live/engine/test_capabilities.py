"""What each version can do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from maestroctl.domain.llm import EngineKind
from maestroctl.errors import CapabilityMissing, ConfigError, EngineError
from maestroctl.live.engine.capabilities import (
    Capability,
    detect_environment,
    look_up_capabilities,
    parse_version,
)

CPU, CUDA = EngineKind.VLLM_CPU, EngineKind.VLLM


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.32.0", (0, 32, 0)), ("0.32.1rc1+cpu", (0, 32, 1)), ("1", (1, 0, 0)), ("0.9", (0, 9, 0))],
)
def test_versions_are_read(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("version", ["0.27.0", "0.32.0", "0.32.4"])
def test_tried_cpu_versions_sleep_and_suspend(version: str) -> None:
    features = look_up_capabilities(CPU, version).features
    assert {Capability.SLEEP_DISK, Capability.SUSPEND, Capability.ABORT_REQUESTS} <= features
    assert Capability.SLEEP_HOST not in features


def test_untried_newer_cpu_version_loses_sleep_and_says_so() -> None:
    capabilities = look_up_capabilities(CPU, "0.33.0")
    assert Capability.WORKER_SLEEP not in capabilities
    assert Capability.ABORT_REQUESTS in capabilities
    assert any("worker_sleep" in note for note in capabilities.notes)
    with pytest.raises(CapabilityMissing, match=r"m@n.*0\.33\.0"):
        capabilities.require(Capability.SLEEP_DISK, "m@n")


def test_oldest_version_cannot_abort() -> None:
    assert Capability.ABORT_REQUESTS not in look_up_capabilities(CPU, "0.24.0")


def test_cuda_build_sleeps_in_host_memory_and_has_elastic_kv_with_kvcached() -> None:
    plain = look_up_capabilities(CUDA, "0.30.0")
    assert Capability.SLEEP_HOST in plain
    assert Capability.ELASTIC_KV not in plain
    elastic = look_up_capabilities(CUDA, "0.30.0", kvcached_version="0.1.6")
    assert Capability.ELASTIC_KV in elastic
    assert any("kvcached" in note for note in elastic.notes)
    assert Capability.ELASTIC_KV not in look_up_capabilities(
        CPU, "0.30.0", kvcached_version="0.1.6"
    )


@pytest.mark.parametrize("version", ["0.8.4", "0.23.9"])
def test_too_old_version_is_refused_with_what_to_install(version: str) -> None:
    with pytest.raises(ConfigError, match=version) as caught:
        look_up_capabilities(CPU, version)
    assert "0.24.0" in (caught.value.hint or "")


def test_text_that_is_no_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="'latest'"):
        look_up_capabilities(CPU, "latest")


async def test_environment_without_vllm_is_described(tmp_path: Path) -> None:
    facts = await detect_environment(sys.executable)
    assert facts.vllm_version == ""
    assert facts.python_version.startswith("3.")
    assert await detect_environment(sys.executable) is facts
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(EngineError, match="broken"):
        await detect_environment(broken)
    with pytest.raises(EngineError, match="does not exist"):
        await detect_environment(tmp_path / "absent")
