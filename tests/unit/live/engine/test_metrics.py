"""Reading Prometheus text of old and new servers."""

from __future__ import annotations

import pytest

from maestroctl.live.engine.metrics import EngineMetrics, parse_metrics

_TEXT = """
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b"} 2.0
vllm:num_requests_running{engine="1",model_name="a b"} 1.0
vllm:num_requests_waiting{engine="0"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:NAME{engine="0"} 0.25
vllm:cache_config_info{block_size="128",num_gpu_blocks="91",kv_cache_memory_bytes="268435456"} 1.0
"""


@pytest.mark.parametrize("name", ["kv_cache_usage_perc", "gpu_cache_usage_perc"])
def test_figures_are_read_under_both_names_of_the_gauge(name: str) -> None:
    assert parse_metrics(_TEXT.replace("NAME", name)) == EngineMetrics(
        num_running=3,
        num_waiting=4,
        kv_usage=0.25,
        kv_pool_bytes=268435456,
        num_kv_blocks=91,
        block_tokens=128,
    )


def test_unstated_size_is_zero() -> None:
    text = 'vllm:cache_config_info{kv_cache_memory_bytes="None",block_size="16"} 1.0'
    assert parse_metrics(text) == EngineMetrics(block_tokens=16)


def test_other_text_gives_zeros() -> None:
    assert parse_metrics("<html>502</html>\n{}\n") == EngineMetrics()
