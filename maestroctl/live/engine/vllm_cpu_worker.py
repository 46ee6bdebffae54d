"""Sleep and wake for vLLM on the CPU: runs inside the engine's worker process.

vLLM's own sleep mode does nothing on the CPU. This class is mixed into its worker by
`--worker-extension-cls` and called by `POST /collective_rpc`. It drops the weights and the KV
cache of the live process and loads them again.

This file is imported in the engine's environment, where maestroctl is not installed: it imports
nothing of maestroctl, and the adapter puts a folder with a copy of it alone on PYTHONPATH.

A method that raises here can end the engine, so every method returns
``{"ok": False, "error": ...}`` instead. Everything touched is internal to vLLM: the version is
checked, then the shape of what is about to be changed, before the first change.

Theory of operation: `loaded` --maestro_drop--> `dropped` --maestro_restore--> `loaded`. The
caller has paused the scheduler and reset the prefix cache, so no step runs meanwhile and no block
of the old KV cache is believed to hold anything. A restore that fails half-way drops again, so
that only these two states exist.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Answer = dict[str, Any]

OLDEST_VLLM = (0, 24)
NEWEST_VLLM = (0, 32)


def _answer_errors(method: Callable[[Any], Answer]) -> Callable[[Any], Answer]:
    """Turn any exception into an answer: raising would end the engine core."""

    @functools.wraps(method)
    def guarded(self: Any) -> Answer:
        try:
            return method(self)
        except Exception as exc:
            return {"ok": False, "error": f"{type(exc).__name__}: {exc}", "trace": _last_frame()}

    return guarded


class MaestroWorkerExtension:
    """Mixed into vLLM's CPU worker; see the module text."""

    @_answer_errors
    def maestro_status(self: Any) -> Answer:
        """What the worker holds now: weights? KV? how many bytes of each?"""
        return _status(self)

    @_answer_errors
    def maestro_drop(self: Any) -> Answer:
        """Free weights and KV cache. Dropping twice changes nothing."""
        problem = _problem(self)
        if problem:
            return {"ok": False, "error": problem}
        started = time.monotonic()
        _drop(self)
        return {**_status(self), "seconds": time.monotonic() - started}

    @_answer_errors
    def maestro_restore(self: Any) -> Answer:
        """Load weights and allocate the KV cache again. Restoring twice changes nothing."""
        problem = _problem(self)
        if problem:
            return {"ok": False, "error": problem}
        runner = self.model_runner
        started = time.monotonic()
        if runner.model is not None and runner.kv_caches:
            return {**_status(self), "seconds": 0.0}
        try:
            self.load_model()
            runner.initialize_kv_cache(runner.kv_cache_config)
        except Exception:
            _drop(self)
            raise
        return {**_status(self), "seconds": time.monotonic() - started}


def _version() -> tuple[int, ...]:
    import vllm

    parts = vllm.__version__.split("+")[0].split(".")
    return tuple(int(part) for part in parts[:2])


def _problem(worker: Any) -> str | None:
    """Why this worker cannot be dropped and restored, or None."""
    import vllm

    if not OLDEST_VLLM <= _version() <= NEWEST_VLLM:
        return f"vllm {vllm.__version__} is not among the versions this was tried on"
    runner = getattr(worker, "model_runner", None)
    for owner, names in (
        (worker, ("load_model", "vllm_config", "model_config")),
        (runner, ("model", "kv_caches", "attn_groups", "kv_cache_config", "initialize_kv_cache")),
    ):
        missing = [name for name in names if not hasattr(owner, name)]
        if missing:
            return f"vllm {vllm.__version__} has no {type(owner).__name__}.{missing[0]}"
    if not worker.model_config.enforce_eager:
        return "a compiled model keeps its weights; start with --enforce-eager"
    if worker.vllm_config.speculative_config is not None:
        return "sleep with speculative decoding is not supported on the CPU"
    if worker.vllm_config.lora_config is not None:
        return "sleep with LoRA adapters is not supported on the CPU"
    return None


def _drop(worker: Any) -> None:
    """Let go of every reference to weights and KV, and give the pages back to the system."""
    runner = worker.model_runner
    context = worker.vllm_config.compilation_config.static_forward_context
    for layer in context.values():
        if hasattr(layer, "kv_cache"):
            layer.kv_cache = []
    # Attention layers register themselves here by name and refuse a second registration.
    context.clear()
    runner.kv_caches.clear()
    runner.attn_groups.clear()
    runner.model = None
    # Packed linear weights live in handlers of the layers and go only with the modules, which
    # refer to each other in circles.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _status(worker: Any) -> Answer:
    runner = worker.model_runner
    model = getattr(runner, "model", None)
    tensors = [] if model is None else [*model.parameters(), *model.buffers()]
    return {
        "ok": True,
        "weights": model is not None,
        "kv": bool(runner.kv_caches),
        "weights_bytes": _storage_bytes(tensors),
        "kv_bytes": _storage_bytes(_flatten(runner.kv_caches)),
        "private_bytes": _private_bytes(),
    }


def _flatten(values: Any) -> Iterator[Any]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, list | tuple | dict):
            yield from _flatten(value)
        else:
            yield value


def _storage_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of distinct storages: tied weights and views of one pool count once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def _private_bytes() -> int:
    """Memory of this process that no other maps."""
    total = 0
    with open("/proc/self/smaps_rollup") as file:
        for line in file:
            if line.startswith("Private_"):
                total += int(line.split()[1]) * 1024
    return total


def _last_frame() -> list[str]:
    return traceback.format_exc().strip().splitlines()[-3:]
