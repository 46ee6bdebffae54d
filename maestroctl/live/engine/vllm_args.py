"""Command line and environment of a vLLM server, CUDA or CPU build.

Each flag that is set for a reason says the reason. What a user puts under `[engine.NAME]` or
`engine_args` comes last, and so wins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from maestroctl.domain.ids import DeviceName
from maestroctl.domain.llm import EngineKind
from maestroctl.live import gpu
from maestroctl.live.engine.base import EngineOrder
from maestroctl.live.engine.capabilities import Capabilities, Capability
from maestroctl.live.engine.environment import (
    EXTENSION_CLASS,
    base_environment,
    install_worker_extension,
    make_ipc_dir,
)
from maestroctl.live.engine.kvcached import kvcached_environment

# The console script `vllm` fails in the CPU distribution; the module is the same server.
SERVER_MODULE = "vllm.entrypoints.openai.api_server"
# A long prefill in one iteration stalls every decoding neighbour: 1,932 tokens took 4.4 s on two
# cores. Pieces of 256 bound the stall, and how long a cancelled prefill goes on, to 0.6 s.
CPU_MAX_BATCHED_TOKENS = 256


def build_vllm_argv(
    order: EngineOrder, python: str, socket: Path, kv_bytes: int, capabilities: Capabilities
) -> tuple[str, ...]:
    """Command line of the server.

    Args:
        order: what to serve.
        python: interpreter of the engine's environment.
        socket: Unix socket that it shall make.
        kv_bytes: KV cache size per device.
        capabilities: what this version can do; flags it does not know are left out.
    """
    model = order.model
    weights = order.model_dir or (model.source.reference if model.source else model.name)
    argv = [python, "-m", order.engine.entrypoint or SERVER_MODULE]
    argv += ["--model", str(weights), "--served-model-name", order.served_name]
    argv += ["--uds", str(socket)]
    argv += ["--max-num-seqs", str(model.max_batch)]
    if model.max_model_len is not None:
        argv += ["--max-model-len", str(model.max_model_len)]
    if Capability.ELASTIC_KV not in capabilities:
        # An explicit size: a share of the device would misread memory that a neighbour frees.
        argv += ["--kv-cache-memory-bytes", str(kv_bytes)]
    # Our order also decides whom the engine preempts when its KV runs out.
    argv += ["--scheduling-policy", "priority"]
    # Requests can be aborted by the name that we gave them.
    argv += ["--enable-request-id-headers"]
    # Every reading of its state would be a line of the log.
    argv += ["--disable-uvicorn-access-log"]
    argv += _kind_flags(order, capabilities)
    return (*argv, *order.engine.args, *model.engine_args)


def _kind_flags(order: EngineOrder, capabilities: Capabilities) -> list[str]:
    if order.model.tensor_parallel > 1:
        parallel = ["--tensor-parallel-size", str(order.model.tensor_parallel)]
    else:
        parallel = []
    if order.engine.kind is EngineKind.VLLM:
        return [*parallel, "--enable-sleep-mode"]
    flags = [*parallel, "--max-num-batched-tokens", str(CPU_MAX_BATCHED_TOKENS)]
    # A compiled model keeps references to its weights; eager also saves the compile at start.
    flags += ["--enforce-eager"]
    if Capability.WORKER_SLEEP in capabilities:
        flags += ["--worker-extension-cls", EXTENSION_CLASS]
    return flags


def build_vllm_env(order: EngineOrder, capabilities: Capabilities, ipc_name: str) -> dict[str, str]:
    """Environment of the server.

    Args:
        order: what to serve.
        capabilities: what this version can do.
        ipc_name: name of its kvcached limit file, used with `ELASTIC_KV` alone.
    """
    env = base_environment()
    env |= {
        "VLLM_SERVER_DEV_MODE": "1",  # pause, sleep, collective_rpc; the socket is ours alone
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",  # the weights are a folder by now
        "VLLM_HOST_IP": "127.0.0.1",  # its own ports stay on loopback
        "PYTHONUNBUFFERED": "1",
    }
    if (folder := make_ipc_dir(order)) is not None:
        env["VLLM_RPC_BASE_PATH"] = str(folder)
    if order.engine.kind is EngineKind.VLLM:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(_cuda_indices(order.devices))
        if Capability.ELASTIC_KV in capabilities:
            env |= kvcached_environment(ipc_name)
    else:
        # Several engines share the cores: binding would put them all on the same ones, and
        # without a thread count two engines on two cores gave a tenth of their speed.
        env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        env["OMP_NUM_THREADS"] = str(order.threads or gpu.count_cpu_threads())
        # Threads that spin while they wait starve each other when anything else runs: two threads
        # on two busy cores gave 2 tokens/s spinning and 25 sleeping.
        env["OMP_WAIT_POLICY"] = "PASSIVE"
        env["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the runner that the extension knows
        if Capability.WORKER_SLEEP in capabilities:
            env["PYTHONPATH"] = str(install_worker_extension(order.state_dir))
    if order.engine.entrypoint is not None:
        env["PYTHONPATH"] = _joined(env.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
    extra = dict(order.engine.env)
    if "PYTHONPATH" in extra:
        extra["PYTHONPATH"] = _joined(env.get("PYTHONPATH"), extra["PYTHONPATH"])
    return env | extra


def find_python(order: EngineOrder, resolved: str) -> str:
    """Interpreter for an order: its own entry point may live in ours."""
    if order.engine.entrypoint is not None and order.engine.python == "auto":
        return sys.executable
    return resolved


def _cuda_indices(devices: Sequence[DeviceName]) -> list[str]:
    return [device.removeprefix("cuda:") for device in devices]


def _joined(*parts: str | None) -> str:
    return os.pathsep.join(part for part in parts if part)
