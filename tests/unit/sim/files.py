"""A simulation file as parsed values: two nodes, each holding one and a half of two models."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "run": {"jobs": 40, "seed": 3},
    "model": [
        {"name": "small", "weights": "7.55 GB", "max_model_len": 4096, "max_batch": 4},
        {"name": "large", "weights": "15.27 GB", "max_model_len": 4096, "max_batch": 4},
    ],
    "node": [{"name": "n", "count": 2, "memory": "30 GB", "host_memory": "64 GB"}],
    "arrivals": {"kind": "bursty", "rate": 0.5, "cv": 2},
    "class": [
        {
            "service_class": "interactive",
            "share": 0.6,
            "apps": ["fireact_hotpotqa", "reflexion_hotpotqa"],
            "deadline_factor": 4,
            "models": ["small"],
        },
        {"service_class": "batch", "share": 0.4, "models": ["large"], "tool_time": "1s"},
    ],
    "prediction": {"error": "lognormal", "rho": 0.5},
    "network": {"rtt": "5ms"},
}
