"""Endpoints that read: health, models, version, load, server info, tokenizer, metrics."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from maestroctl.testing.stub_engine.engine import StubEngine
from maestroctl.testing.stub_engine.errors import send_error
from maestroctl.testing.stub_engine.http_server import Exchange, Handler
from maestroctl.testing.stub_engine.options import BLOCK_TOKENS
from maestroctl.testing.stub_engine.text import count_chat_tokens, token_ids

METRICS_TYPE = b"text/plain; version=1.0.0; charset=utf-8"


class InfoApi:
    """Handlers of the reading endpoints."""

    def __init__(self, engine: StubEngine) -> None:
        self._engine = engine
        self._created_s = int(time.time())

    def health(self, exchange: Exchange) -> None:
        """``GET /health``: 200 and no body."""
        exchange.send(200, b"", b"")

    def version(self, exchange: Exchange) -> None:
        """``GET /version``"""
        exchange.send_json(200, {"version": self._engine.options.version})

    def load(self, exchange: Exchange) -> None:
        """``GET /load``: requests in the engine."""
        generation = self._engine.generation
        load = len(generation.running) + generation.num_waiting
        exchange.send_json(200, {"server_load": load})

    def models(self, exchange: Exchange) -> None:
        """``GET /v1/models``: every served name."""
        options = self._engine.options
        data: list[dict[str, Any]] = [
            {
                "id": name,
                "object": "model",
                "created": self._created_s,
                "owned_by": "vllm",
                "root": options.model,
                "parent": None,
                "max_model_len": options.max_model_len,
                "permission": [],
            }
            for name in options.served_names
        ]
        exchange.send_json(200, {"object": "list", "data": data})

    def server_info(self, exchange: Exchange) -> None:
        """``GET /server_info[?config_format=json]``: enough of vLLM's to identify an engine."""
        options = self._engine.options
        config: dict[str, Any] = {
            "model_config": {"model": options.model, "max_model_len": options.max_model_len},
            "cache_config": self._cache_config(),
            "scheduler_config": {"max_num_seqs": options.max_num_seqs},
            "parallel_config": {"tensor_parallel_size": 1},
        }
        as_json = "config_format=json" in exchange.request.query
        env = {k: v for k, v in os.environ.items() if k.startswith("VLLM_") and "KEY" not in k}
        info = {"vllm_config": config if as_json else str(config), "vllm_env": env}
        exchange.send_json(200, {**info, "system_env": {"pid": os.getpid()}})

    def tokenize(self, exchange: Exchange) -> None:
        """``POST /tokenize``: a prompt or a conversation."""
        try:
            body = json.loads(exchange.request.body)
            messages, prompt = body.get("messages"), body.get("prompt")
            if messages is not None:
                tokens = list(range(count_chat_tokens(messages)))
            else:
                tokens = token_ids(prompt)
        except (ValueError, TypeError, AttributeError):
            send_error(self._engine, exchange, 400, "prompt or messages are required")
            return
        max_model_len = self._engine.options.max_model_len
        answer = {"count": len(tokens), "max_model_len": max_model_len, "tokens": tokens}
        exchange.send_json(200, {**answer, "token_strs": None})

    def metrics(self, exchange: Exchange) -> None:
        """``GET /metrics``: the series a supervisor reads."""
        exchange.send(200, self._exposition().encode(), METRICS_TYPE)

    def _cache_config(self) -> dict[str, Any]:
        options = self._engine.options
        return {
            "block_size": BLOCK_TOKENS,
            "num_gpu_blocks": options.num_blocks,
            "kv_cache_memory_bytes": options.kv_bytes,
            "kv_cache_size_tokens": options.num_blocks * BLOCK_TOKENS,
        }

    def _exposition(self) -> str:
        generation = self._engine.generation
        model = f'model_name="{self._engine.options.served_names[0]}"'
        lines: list[str] = []

        def add(name: str, kind: str, value: float, extra: str = "") -> None:
            if kind:
                lines.append(f"# TYPE vllm:{name} {kind}")
            lines.append(f'vllm:{name}{{engine="0",{extra}{model}}} {float(value)}')

        add("num_requests_running", "gauge", len(generation.running))
        add("num_requests_waiting", "gauge", generation.num_waiting)
        add("kv_cache_usage_perc", "gauge", generation.kv_usage)
        add("num_preemptions_total", "counter", generation.num_preemptions)
        add("prompt_tokens_total", "counter", generation.prompt_tokens)
        add("generation_tokens_total", "counter", generation.generation_tokens)
        lines.append("# TYPE vllm:request_success_total counter")
        for reason in ("stop", "length", "abort", "error"):
            count = generation.finished[reason]
            if reason == "stop":
                count += generation.finished["tool_calls"]
            add("request_success_total", "", count, f'finished_reason="{reason}",')
        add("time_to_first_token_seconds_count", "", generation.first_tokens)
        add("time_to_first_token_seconds_sum", "", generation.ttft_sum_s)
        config = "".join(f'{name}="{value}",' for name, value in self._cache_config().items())
        add("cache_config_info", "gauge", 1, config)
        return "\n".join(lines) + "\n"


def info_handlers(engine: StubEngine) -> dict[tuple[str, str], Handler]:
    """The reading endpoints, by method and path."""
    api = InfoApi(engine)
    handlers: dict[tuple[str, str], Handler] = {
        ("GET", "/health"): api.health,
        ("GET", "/ping"): api.health,
        ("GET", "/version"): api.version,
        ("GET", "/load"): api.load,
        ("GET", "/v1/models"): api.models,
        ("GET", "/metrics"): api.metrics,
        ("POST", "/tokenize"): api.tokenize,
    }
    if engine.options.dev_mode:
        handlers[("GET", "/server_info")] = api.server_info
    return handlers
