"""A profile with where it came from: what `profiles/<device>/<model>.toml` holds."""

from __future__ import annotations

from dataclasses import dataclass

from maestroctl.domain.llm import EngineKind, KvGeometry, ModelProfile

MEASURED, DERIVED, GEOMETRY, DECLARED, NONE = "measured", "derived", "geometry", "declared", "none"
"""Origins of a `ModelProfile`: by `maestroctl profile`; by arithmetic from published figures; by
arithmetic from the model's files; what the user said; an engine whose costs nobody books."""


@dataclass(frozen=True, slots=True)
class ProfiledEngine:
    """What ran the model; another engine costs something else.

    Attributes:
        args: arguments that change what an iteration costs (`cost_arguments`).
        threads: CPU threads it had; None on a GPU.
        max_batched_tokens: tokens of one iteration, the chunk of a long prefill; 0 = the engine's
            own.
    """

    kind: EngineKind
    version: str = ""
    args: tuple[str, ...] = ()
    tensor_parallel: int = 1
    threads: int | None = None
    max_batched_tokens: int = 0


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """Decoding at one batch size, as seen.

    Attributes:
        context_tokens: tokens in KV of one sequence, on average.
        seconds: per token of one sequence, the median.
        spread: half the distance between the quartiles, as a share of the median.
        num_samples: windows of tokens it was read from.
    """

    batch: int
    context_tokens: int
    seconds: float
    spread: float
    num_samples: int


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """Time to the first token of one prompt on an idle engine; fields as in `DecodePoint`."""

    prompt_tokens: int
    seconds: float
    spread: float
    num_samples: int


@dataclass(frozen=True, slots=True)
class FitQuality:
    """How well the four costs of an iteration say what was seen.

    Attributes:
        median_error, p90_error: relative residuals over the samples.
        c0_interval_s ... cp_interval_s: 95 % intervals.
        request_s: time of a request outside of iterations, fitted beside the four.
    """

    num_samples: int
    median_error: float
    p90_error: float
    c0_interval_s: tuple[float, float]
    c1_interval_s: tuple[float, float]
    c2_interval_s: tuple[float, float]
    cp_interval_s: tuple[float, float]
    request_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProfileCheck:
    """Predicted against measured stage times of requests that the fit has not seen.

    Attributes:
        num_stages: compared.
        batches: the least and the most stages at once.
        median_error, p90_error: |predicted - measured| / measured.
        bias: median of (predicted - measured) / measured.
    """

    num_stages: int
    batches: tuple[int, int]
    median_error: float
    p90_error: float
    bias: float


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """One profile file.

    Attributes:
        costs: the profile; its origin and date are in it.
        geometry: shape of the KV cache on one device, to size another KV pool.
        device: as `live.profile.device` names it.
        device_kind: ``cpu`` or ``cuda``.
        source: of the weights, as in ``[[model]] source``; empty when it does not matter.
        made_at: date and time, ISO 8601.
        maestroctl: version that wrote it.
        missing: what an interrupted or short run did not measure, from geometry instead.
        num_blocks: KV blocks the engine made of the pool; 0 = it does not say.
        gamma_measured: False = assumed.
        saturated: a larger batch than `costs.max_batch` was tried and did not pay, so no engine
            is given more; else the fleet file may ask for more.
    """

    costs: ModelProfile
    geometry: KvGeometry
    device: str
    device_kind: str
    engine: ProfiledEngine
    source: str = ""
    made_at: str = ""
    maestroctl: str = ""
    missing: tuple[str, ...] = ()
    num_blocks: int = 0
    gamma_measured: bool = False
    saturated: bool = False
    decode: tuple[DecodePoint, ...] = ()
    prefill: tuple[PrefillPoint, ...] = ()
    fit: FitQuality | None = None
    check: ProfileCheck | None = None

    def __post_init__(self) -> None:
        if self.device_kind not in ("cpu", "cuda"):
            raise ValueError(f"a device is cpu or cuda, found {self.device_kind!r}")
