"""Command line and environment of a vLLM server."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from maestroctl.domain.ids import DeviceName, EngineId, ModelName
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSpec
from maestroctl.live.engine import environment
from maestroctl.live.engine import identity as identities
from maestroctl.live.engine.base import EngineOrder
from maestroctl.live.engine.capabilities import look_up_capabilities
from maestroctl.live.engine.vllm_args import build_vllm_argv, build_vllm_env


def _order(folder: Path, kind: EngineKind = EngineKind.VLLM_CPU, **model: object) -> EngineOrder:
    return EngineOrder(
        engine_id=EngineId("m@n"),
        generation=1,
        model=ModelSpec(ModelName("m"), **model),  # type: ignore[arg-type]
        engine=EngineSpec("default", kind, args=("--seed", "1")),
        state_dir=folder,
        model_dir=Path("/models/m"),
        threads=1,
    )


def _argv(order: EngineOrder, version: str = "0.32.0", kvcached: str = "") -> list[str]:
    capabilities = look_up_capabilities(order.engine.kind, version, kvcached_version=kvcached)
    return list(build_vllm_argv(order, "/py", Path("/run/x.sock"), 1 << 28, capabilities))


def _value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_cpu_server_gets_a_socket_an_explicit_kv_size_and_short_prefills(tmp_path: Path) -> None:
    argv = _argv(_order(tmp_path, max_model_len=2048, max_batch=4))
    assert argv[:3] == ["/py", "-m", "vllm.entrypoints.openai.api_server"]
    assert _value(argv, "--model") == "/models/m"
    assert _value(argv, "--served-model-name") == "m"
    assert _value(argv, "--uds") == "/run/x.sock"
    assert _value(argv, "--kv-cache-memory-bytes") == str(1 << 28)
    assert _value(argv, "--max-model-len") == "2048"
    assert _value(argv, "--max-num-seqs") == "4"
    assert _value(argv, "--max-num-batched-tokens") == "256"
    assert _value(argv, "--scheduling-policy") == "priority"
    assert _value(argv, "--worker-extension-cls") == environment.EXTENSION_CLASS
    assert {"--enforce-eager", "--enable-request-id-headers"} <= set(argv)
    assert "--enable-sleep-mode" not in argv


def test_users_arguments_come_last(tmp_path: Path) -> None:
    argv = _argv(_order(tmp_path, engine_args=("--dtype", "float32")))
    assert argv[-4:] == ["--seed", "1", "--dtype", "float32"]


def test_untried_version_gets_no_extension(tmp_path: Path) -> None:
    assert "--worker-extension-cls" not in _argv(_order(tmp_path), "0.40.0")


def test_cuda_server_sleeps_by_itself_and_kvcached_replaces_the_fixed_pool(tmp_path: Path) -> None:
    order = _order(tmp_path, EngineKind.VLLM, tensor_parallel=2)
    argv = _argv(order)
    assert "--enable-sleep-mode" in argv
    assert _value(argv, "--tensor-parallel-size") == "2"
    assert "--max-num-batched-tokens" not in argv
    assert "--kv-cache-memory-bytes" in argv
    assert "--kv-cache-memory-bytes" not in _argv(order, kvcached="0.1.6")


def test_environment_keeps_the_daemons_secrets_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "PYTHONPATH", "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.setenv(name, "leak")
    monkeypatch.setenv("HF_HOME", "/hf")
    order = _order(tmp_path)
    env = build_vllm_env(order, look_up_capabilities(EngineKind.VLLM_CPU, "0.32.0"), "ipc")
    assert "leak" not in env.values()
    assert env["HF_HOME"] == "/hf"
    assert env["OMP_NUM_THREADS"] == "1"
    assert env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "CUDA_VISIBLE_DEVICES" not in env


def test_cuda_environment_names_its_devices_and_its_kv_file(tmp_path: Path) -> None:
    devices = (DeviceName("cuda:2"), DeviceName("cuda:3"))
    order = replace(_order(tmp_path, EngineKind.VLLM), devices=devices)
    elastic = look_up_capabilities(EngineKind.VLLM, "0.30.0", kvcached_version="0.1.6")
    env = build_vllm_env(order, elastic, "ipc")
    assert env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert env["KVCACHED_IPC_NAME"] == "ipc"


def test_extension_folder_holds_the_extension_alone(tmp_path: Path) -> None:
    folder = environment.install_worker_extension(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["maestroctl_cpu_worker.py"]
    assert environment.install_worker_extension(tmp_path) == folder
    # It must import where neither maestroctl nor vLLM is installed.
    code = (
        "import maestroctl_cpu_worker as m, sys; w = m.MaestroWorkerExtension();"
        "print(w.maestro_drop()['ok'], w.maestro_restore()['ok'], w.maestro_status()['ok'],"
        "any(n.startswith('maestroctl.') for n in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "False", "False", "False"]


def test_long_state_folder_moves_the_socket_to_a_private_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    path = environment.socket_path(replace(_order(tmp_path), state_dir=deep))
    assert len(str(path)) < 108
    assert len(str(identities.ipc_dir(path) / str(uuid4()))) < 108
    assert path.parent.stat().st_mode & 0o077 == 0
    short = environment.socket_path(replace(_order(tmp_path), state_dir=Path("/s")))
    assert short.is_relative_to("/s/run")


def test_sockets_between_its_processes_go_into_a_folder_of_its_own(tmp_path: Path) -> None:
    order = _order(tmp_path)
    env = build_vllm_env(order, look_up_capabilities(EngineKind.VLLM_CPU, "0.32.0"), "ipc")
    folder = Path(env["VLLM_RPC_BASE_PATH"])
    assert folder == identities.ipc_dir(environment.socket_path(order))
    assert folder.stat().st_mode & 0o077 == 0


def test_digest_sees_every_setting_but_the_generation(tmp_path: Path) -> None:
    order = _order(tmp_path)
    assert environment.spec_hash(order) == environment.spec_hash(replace(order, generation=9))
    for changed in (
        _order(tmp_path, max_batch=3),
        replace(order, devices=(DeviceName("cuda:1"),)),
        replace(order, model_dir=Path("/models/other")),
        replace(order, engine=replace(order.engine, env={"A": "1"})),
    ):
        assert environment.spec_hash(changed) != environment.spec_hash(order)
