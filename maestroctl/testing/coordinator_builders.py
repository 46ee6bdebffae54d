"""Small fleets, snapshots, stages and workflows for tests of the coordinator's decisions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.fleet import ClusterSpec, FleetSpec, NodeSpec
from maestroctl.domain.ids import (
    ClusterName,
    DeviceName,
    EngineId,
    JobId,
    ModelName,
    NodeName,
    StageId,
)
from maestroctl.domain.llm import IterationCost, ModelProfile, ModelSpec
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.snapshot import DeviceSnapshot, EngineSnapshot, NodeSnapshot
from maestroctl.domain.stage import PromptTokens, ServiceClass, StageDescriptor
from maestroctl.domain.units import GIB, MIB
from maestroctl.domain.workflow import RepeatSpec, StepSpec, WorkflowSpec
from maestroctl.scheduler.events import (
    JobSubmitted,
    NodeSnapshotReceived,
    StageArrived,
    StepFinished,
    StepRef,
    StepResult,
)
from maestroctl.testing.plain_policy import PLAIN

PREDICTION = Prediction(output_q50=40.0, output_q90=100.0)
"""Short answers: 100 tokens are booked."""


def make_fleet(
    models: Iterable[str] = ("m",),
    nodes: Mapping[str, Sequence[str]] | Iterable[str] = ("n1",),
    policy: PolicySpec | None = None,
) -> FleetSpec:
    """A fleet of these models and nodes; `nodes` may say which models each is limited to."""
    limits = nodes if isinstance(nodes, Mapping) else dict.fromkeys(nodes, ())
    cluster = ClusterName("local")
    return FleetSpec(
        models={ModelName(name): ModelSpec(ModelName(name)) for name in models},
        engines={},
        nodes={
            NodeName(name): NodeSpec(
                NodeName(name), models=tuple(ModelName(model) for model in allowed)
            )
            for name, allowed in limits.items()
        },
        clusters={cluster: ClusterSpec(cluster)},
        policy=policy or PLAIN,
    )


def make_profile(model: str = "m", max_batch: int = 4, max_model_len: int = 4096) -> ModelProfile:
    """A small model whose KV pool holds `max_batch` sequences."""
    return ModelProfile(
        model=ModelName(model),
        weights_bytes=GIB,
        context_bytes=200 * MIB,
        peak_bytes=100 * MIB,
        start_peak_bytes=0,
        host_asleep_bytes=GIB,
        kv_bytes_per_token=1024,
        kv_pool_bytes=max_batch * 1024 * max_model_len,
        kv_least_bytes=1024 * max_model_len,
        block_tokens=16,
        max_model_len=max_model_len,
        max_batch=max_batch,
        cold_start_s=30.0,
        wake_s=2.0,
        sleep_s=0.5,
        iteration=IterationCost(0.04, 0.002, 0.0, 0.002),
    )


def make_engine(
    model: str = "m",
    slots: int = 2,
    status: EngineStatus = EngineStatus.IDLE,
    node: str = "n1",
    ready_in_s: float = 0.0,
) -> EngineSnapshot:
    """One engine as a snapshot shows it."""
    return EngineSnapshot(
        engine_id=EngineId(f"{model}@{node}"),
        model=ModelName(model),
        status=status,
        tier=ResidencyTier.DEVICE if status.is_awake else ResidencyTier.HOST,
        generation=1,
        slots=slots,
        num_running=0,
        num_waiting=0,
        ready_in_s=ready_in_s,
        weights_bytes=GIB,
        context_bytes=200 * MIB,
        kv_limit_bytes=GIB,
        kv_booked_bytes=0,
    )


def make_snapshot(
    node: str = "n1",
    engines: Iterable[EngineSnapshot] | None = None,
    profiles: Iterable[ModelProfile] | None = None,
    as_of_s: float = 0.0,
    applied_seq: int = 0,
    epoch: int = 1,
    never_fits: Mapping[str, str] | None = None,
    draining: bool = False,
) -> NodeSnapshot:
    """A node with one idle engine of model `m` with two slots, unless told otherwise."""
    shown = (make_engine(node=node),) if engines is None else tuple(engines)
    if profiles is None:
        names = dict.fromkeys(engine.model for engine in shown)
        profiles = [make_profile(name) for name in names]
    return NodeSnapshot(
        node=NodeName(node),
        cluster=ClusterName("local"),
        as_of_s=as_of_s,
        epoch=epoch,
        applied_seq=applied_seq,
        devices=(DeviceSnapshot(DeviceName("cpu"), 8 * GIB, 2 * GIB),),
        engines=shown,
        profiles=tuple(profiles),
        never_fits=tuple((ModelName(m), why) for m, why in (never_fits or {}).items()),
        draining=draining,
    )


def node_says(snapshot: NodeSnapshot | None = None) -> NodeSnapshotReceived:
    """The event of a snapshot."""
    return NodeSnapshotReceived(snapshot or make_snapshot())


def make_stage(
    stage_id: str = "s1",
    job: str | None = None,
    models: Sequence[str] = ("m",),
    arrival_s: float = 0.0,
    prompt_tokens: int = 50,
    external: bool = True,
    service_class: ServiceClass = ServiceClass.INTERACTIVE,
    max_tokens: int | None = None,
    role: str = "assistant",
) -> StageDescriptor:
    """A stage; its job is its own unless named."""
    return StageDescriptor(
        stage_id=StageId(stage_id),
        job_id=JobId(job or f"job-of-{stage_id}"),
        candidates=tuple(ModelName(model) for model in models),
        arrival_s=arrival_s,
        prompt_tokens=PromptTokens(0, prompt_tokens, prompt_tokens),
        external=external,
        service_class=service_class,
        max_tokens=max_tokens,
        role=role,
    )


def arrival(stage: StageDescriptor, prediction: Prediction = PREDICTION) -> StageArrived:
    """The event of a stage."""
    return StageArrived(stage, prediction)


def make_step(
    name: str,
    after: Sequence[str] = (),
    back_to: str | None = None,
    at_most: int = 3,
    fan_out: bool = False,
) -> StepSpec:
    """A step, with a loop or a fan-out where asked."""
    return StepSpec(
        name=name,
        prompt="{{ input }}",
        after=tuple(after),
        repeat=None if back_to is None else RepeatSpec(back_to, "False", at_most),
        for_each="{{ items }}" if fan_out else None,
    )


def make_workflow(*steps: StepSpec, name: str = "flow") -> WorkflowSpec:
    """A workflow of these steps in this order."""
    return WorkflowSpec(name, {step.name: step for step in steps})


def submission(
    workflow: WorkflowSpec, job: str = "j", finished: Iterable[StepResult] = ()
) -> JobSubmitted:
    """The event of a job."""
    return JobSubmitted(JobId(job), workflow, ServiceClass.BATCH, 0.0, None, tuple(finished))


def step_done(
    step: str,
    visit: int = 1,
    item: int = 0,
    num_items: int = 1,
    repeat: bool = False,
    job: str = "j",
) -> StepFinished:
    """The event of a finished item."""
    result = StepResult(StepRef(step, visit, item), num_items, repeat)
    return StepFinished(JobId(job), result)


def limited(policy: PolicySpec | None = None, **changes: float | str) -> PolicySpec:
    """A policy with some fields changed."""
    return replace(policy or PLAIN, **changes)  # type: ignore[arg-type]


def fingerprint(thing: object) -> object:
    """All that an object holds, as nested tuples that compare; shared objects by first visit.

    For tests of "changes nothing": two fingerprints are equal exactly when no field anywhere below
    `thing` has changed. Functions count by name.
    """
    return _fingerprint(thing, {})


def _fingerprint(thing: object, seen: dict[int, int]) -> object:
    if thing is None or isinstance(thing, (str, int, float, bytes, Enum, type)):
        return thing
    if isinstance(thing, bytearray):
        return bytes(thing)
    if id(thing) in seen:
        return ("seen", seen[id(thing)])
    seen[id(thing)] = len(seen)
    if isinstance(thing, Mapping):
        return tuple((key, _fingerprint(value, seen)) for key, value in thing.items())
    if isinstance(thing, (list, tuple, deque)):
        return tuple(_fingerprint(item, seen) for item in thing)
    if callable(thing) and hasattr(thing, "__qualname__"):
        return thing.__qualname__
    names = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
    names += list(getattr(thing, "__dict__", ()))
    fields = ((name, _fingerprint(getattr(thing, name), seen)) for name in names)
    return (type(thing).__name__, *fields)
