"""The few figures read from an engine's Prometheus text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

# The gauge was renamed; older servers still use the second name.
_KV_USAGE_NAMES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Load of an engine and the size of its KV pool.

    Attributes:
        num_running, num_waiting: requests.
        kv_usage: share of the KV pool in use, 0 to 1.
        kv_pool_bytes: size it was given; 0 when not stated.
        num_kv_blocks, block_tokens: the pool in blocks and tokens per block; 0 when not stated.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    kv_pool_bytes: int = 0
    num_kv_blocks: int = 0
    block_tokens: int = 0


def parse_metrics(text: str) -> EngineMetrics:
    """Read Prometheus text; samples that are missing count as 0.

    Sums over the engines of one server (data parallel), except for usage, where the fullest
    counts.
    """
    running = waiting = 0.0
    usage = 0.0
    config: dict[str, str] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line.strip())
        if match is None:
            continue
        name, value = match["name"], match["value"]
        if name == "vllm:num_requests_running":
            running += float(value)
        elif name == "vllm:num_requests_waiting":
            waiting += float(value)
        elif name in _KV_USAGE_NAMES:
            usage = max(usage, float(value))
        elif name == "vllm:cache_config_info":
            config = dict(_LABEL.findall(match["labels"] or ""))
    return EngineMetrics(
        num_running=int(running),
        num_waiting=int(waiting),
        kv_usage=usage,
        kv_pool_bytes=_whole(config.get("kv_cache_memory_bytes")),
        num_kv_blocks=_whole(config.get("num_gpu_blocks")),
        block_tokens=_whole(config.get("block_size")),
    )


def _whole(text: str | None) -> int:
    """A whole number, or 0 for one that is absent or ``None``."""
    return int(text) if text and text.isdigit() else 0
