"""Hypothesis strategies for node cores: small fleets of engines with mixed abilities and needs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.units import GIB
from maestroctl.scheduler.node_core import NodeCore
from maestroctl.testing.builders import (
    ALL_ABLE,
    ELASTIC,
    ENDPOINT,
    HOST_SLEEPER,
    SLEEPER,
    STARTER,
    make_node_core,
)
from maestroctl.testing.harsh_degradation import HarshDegradation

abilities = st.sampled_from([SLEEPER, HOST_SLEEPER, STARTER, ELASTIC, ALL_ABLE])
"""Abilities of a managed engine."""

device_budgets = st.sampled_from(
    [
        {"cpu": 8 * GIB},
        {"cpu": 10 * GIB},
        {"cpu": 18 * GIB},
        {"cuda:0": 10 * GIB, "cuda:1": 12 * GIB},
    ]
)
"""One device in which one, barely two or two engines are awake; or two devices."""


@st.composite
def model_specs(draw: st.DrawFn, num_devices: int) -> dict[str, Any]:
    """Fields of a `ModelSpec` that matter to a node."""
    return {
        "max_batch": draw(st.sampled_from([1, 2, 4])),
        "ttl_s": draw(st.sampled_from([None, None, 20.0])),
        "pin": draw(st.integers(0, 9)) == 0,
        "tensor_parallel": draw(st.integers(1, num_devices)),
    }


@st.composite
def node_cores(draw: st.DrawFn) -> NodeCore:
    """A node with up to five models, in need of memory more often than not."""
    models = ["a", "b", "c", "d", "e"][: draw(st.integers(1, 5))]
    devices = draw(device_budgets)
    able = {model: draw(abilities) for model in models}
    if draw(st.integers(0, 4)) == 0:
        able[models[-1]] = ENDPOINT
    seams: dict[str, Any] = {}
    if draw(st.booleans()):
        seams["degradation"] = HarshDegradation(draw(st.integers(0, 99)), draw(st.integers(4, 5)))
    return make_node_core(
        models,
        devices=devices,
        host=draw(st.sampled_from([0, 4, 8, 64])) * GIB,
        abilities=able,
        specs={model: draw(model_specs(len(devices))) for model in models},
        profiles={
            model: {"weights_bytes": draw(st.sampled_from([1, 3, 3, 6])) * GIB} for model in models
        },
        policy=PolicySpec(group_wait_s=draw(st.sampled_from([0.0, 5.0, None]))),
        **seams,
    )
