"""One TOML file that declares a whole simulation: fleet, costs, network, workload, errors.

Read like the other files: every mistake with its line and a hint, all of them at once, before
anything is played. docs/simulator.md has the reference.

See also: `sim.config_tables` (what may be written).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maestroctl.config.file_kind import FileKind, refuse_other_kind
from maestroctl.config.fleet import check_policies
from maestroctl.config.kinds import did_you_mean
from maestroctl.config.profile import load_profile
from maestroctl.config.profile_store import PROFILES, list_profiles
from maestroctl.config.profile_tables import DeviceKind
from maestroctl.config.shipped import shipped_dir
from maestroctl.config.source import Origin, OriginKind, Source, read_text
from maestroctl.config.tables import Key
from maestroctl.config.toml_lines import Path as KeyPath
from maestroctl.domain.fleet import ClusterSpec, FleetSpec, NodeSpec
from maestroctl.domain.ids import ClusterName, ModelName, NodeName
from maestroctl.domain.llm import KvGeometry, ModelProfile, ModelSpec
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.estimate.profile_from_geometry import estimate_profile, size_profile
from maestroctl.scheduler.registry import KNOWN_POLICIES
from maestroctl.sim import config_tables as schema
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.traces import load_arrivals, load_jobs
from maestroctl.sim.workload import ArrivalSpec, ClassSpec, JobSource, WorkloadSpec
from maestroctl.sim.world import CPU_ABILITIES, GPU_ABILITIES, WorldSpec

_LOCAL = ClusterName("local")


@dataclass(frozen=True, slots=True)
class SimulationSpec:
    """Everything a run needs."""

    world: WorldSpec
    workload: WorkloadSpec
    error: PredictionError
    source: JobSource


def load_simulation(
    path: Path, data: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> SimulationSpec:
    """Read a simulation file.

    Args:
        data: folder of recorded traces; None = the fitted generator.
        overrides: from the command line, by key path (``policy.ordering``).

    Raises:
        ConfigErrors: every mistake of the file and of `overrides`.
        ConfigError: a profile or the data cannot be read.
    """
    source = Source.parse(read_text(path), str(path))
    refuse_other_kind(source.values, FileKind.SIMULATION, str(path))
    for key, value in (overrides or {}).items():
        keys: KeyPath = tuple(key.split("."))
        source.override(keys, value, Origin(OriginKind.COMMAND_LINE, f"--{keys[-1]}"))
    return _Loader(source, data).load()


def make_simulation(
    values: Mapping[str, Any], file: str | None = None, data: Path | None = None
) -> SimulationSpec:
    """The same from parsed values."""
    return _Loader(Source(values, file=file, text=None), data).load()


@dataclass(frozen=True, slots=True)
class _Model:
    """One ``[[model]]``; `max_batched_tokens` 0 = not said."""

    spec: ModelSpec
    costs: ModelProfile
    device_kind: str
    max_batched_tokens: int = 0


class _Loader:
    """One pass over one source. Mistakes go to the source; data is read when there are none."""

    def __init__(self, source: Source, data: Path | None) -> None:
        self._source = source
        self._data = data

    def load(self) -> SimulationSpec:
        """The spec.

        Raises:
            ConfigErrors: there are mistakes.
        """
        source = self._source
        source.known_keys((), schema.TOP_LEVEL)
        tables = {
            name: source.read(table, (name,)) if source.is_table((name,)) else {}
            for name, table in schema.SINGLE_TABLES.items()
        }
        policy = PolicySpec(**tables["policy"])
        check_policies(source, policy, KNOWN_POLICIES)
        models = self._models()
        nodes, rtts = self._nodes(models)
        classes = self._classes(models)
        arrivals = source.build(ArrivalSpec, ("arrivals",), tables["arrivals"]) or ArrivalSpec()
        self._check_trace(arrivals)
        error = source.build(PredictionError, ("prediction",), tables["prediction"])
        run = self._run(tables["run"])
        source.finish()
        without = run.pop("without", ())
        batched = [m.max_batched_tokens for m in models.values() if m.max_batched_tokens]
        batched_tokens = run.pop("max_num_batched_tokens", next(iter(batched), 2048))
        prefix_cache = run.pop("prefix_cache", False)
        is_cpu = any(model.device_kind == DeviceKind.CPU for model in models.values())
        specs = {name: model.spec for name, model in models.items()}
        fleet = FleetSpec(specs, {}, nodes, {_LOCAL: ClusterSpec(_LOCAL)}, policy=policy)
        world = WorldSpec(
            fleet,
            {name: model.costs for name, model in models.items()},
            NetworkSpec(**tables["network"]),
            CPU_ABILITIES if is_cpu else GPU_ABILITIES,
            max_num_batched_tokens=batched_tokens,
            prefix_cache=prefix_cache,
            rtts=rtts,
        )
        workload = WorkloadSpec(**run, classes=classes, arrivals=self._recorded(arrivals))
        jobs = () if self._data is None else load_jobs(self._data, without=without)
        return SimulationSpec(world, workload, error or PredictionError(), JobSource(jobs))

    def _run(self, fields: dict[str, Any]) -> dict[str, Any]:
        fields = {"jobs": 1000, **fields}
        if fields.get("warmup", 0) >= fields["jobs"]:
            self._source.problem(
                ("run", "warmup"), f"of {fields['jobs']} jobs none is left to be counted"
            )
        return fields

    # --- models ---

    def _models(self) -> dict[ModelName, _Model]:
        source = self._source
        models: dict[ModelName, _Model] = {}
        for path in source.tables("model"):
            fields = source.read(schema.MODEL, path)
            if fields.get("name") in models:
                name = fields["name"]
                source.problem((*path, "name"), f"there is a model {name!r} already")
            elif "name" in fields:
                model = self._model(path, fields)
                if model is not None:
                    models[model.spec.name] = model
        if not source.at(("model",)):
            source.problem(("model",), "a simulation needs at least one [[model]]")
        return models

    def _model(self, path: KeyPath, fields: Mapping[str, Any]) -> _Model | None:
        try:
            if "profile" in fields:
                found = self._profiled(path, fields)
            else:
                found = self._made_up(path, fields)
        except ValueError as exc:
            self._source.problem(path, str(exc))
            return None
        if found is None:
            return None
        costs = replace(
            found.costs,
            iteration=replace(found.costs.iteration, **_among(schema.COSTS, fields)),
            **_among(schema.TIMES, fields),
        )
        return replace(found, costs=costs)

    def _profiled(self, path: KeyPath, fields: Mapping[str, Any]) -> _Model | None:
        """Costs of a profile file, with the lengths and the pool that the simulation asks for."""
        for key in _among(schema.GEOMETRY, fields):
            self._source.problem((*path, key), "the profile says it already")
        file = self._profile_path(path, fields["profile"])
        if file is None:
            return None
        record = load_profile(file)
        model = _model_spec(fields, record.costs.max_model_len, record.costs.max_batch)
        most = record.costs.max_batch if record.saturated else None
        costs = size_profile(record.costs, record.geometry, model, most_batch=most)
        return _Model(model, costs, record.device_kind, record.engine.max_batched_tokens)

    def _profile_path(self, path: KeyPath, name: str) -> Path | None:
        """A file, relative to the simulation's; without ``.toml``, one of those that ship."""
        if name.endswith(".toml"):
            return Path(self._source.file or "").parent / Path(name).expanduser()
        folder = shipped_dir(PROFILES)
        known = {f"{p.parent.name}/{p.stem}": p for p in list_profiles([folder])}
        if name not in known:
            self._source.problem(
                (*path, "profile"),
                f"no profile that ships is called {name!r}",
                hint=did_you_mean(name, known),
            )
        return known.get(name)

    def _made_up(self, path: KeyPath, fields: Mapping[str, Any]) -> _Model | None:
        """Costs by arithmetic from the geometry."""
        if "weights" not in fields:
            if self._source.at((*path, "weights")) is None:
                problem = "a model needs the size of the weights, or a profile"
                self._source.problem((*path, "weights"), problem)
            return None
        model = _model_spec(fields, 8192, 16)
        geometry = KvGeometry(
            fields.get("layers", 36), fields.get("kv_heads", 8), fields.get("head_dim", 128)
        )
        is_cpu = fields.get("device") is DeviceKind.CPU
        kind: Any = "cpu" if is_cpu else "cuda"
        length = model.max_model_len or 8192
        return _Model(
            model, estimate_profile(model, geometry, fields["weights"], kind, length), kind
        )

    # --- nodes and load ---

    def _nodes(
        self, models: Mapping[ModelName, _Model]
    ) -> tuple[dict[NodeName, NodeSpec], dict[NodeName, float]]:
        nodes: dict[NodeName, NodeSpec] = {}
        rtts: dict[NodeName, float] = {}
        for path in self._source.tables("node"):
            read = self._source.read(schema.NODE, path)
            fields = {"name": "n", "memory_bytes": 40 << 30, "host_memory_bytes": 128 << 30, **read}
            count, base, rtt_s = fields.pop("count", 1), fields.pop("name"), fields.pop("rtt", None)
            self._check_models(path, fields.get("models", ()), models)
            for number in range(1, count + 1):
                name = NodeName(base if count == 1 else f"{base}{number}")
                if name in nodes:
                    self._source.problem((*path, "name"), f"there is a node {name!r} already")
                    break
                nodes[name] = NodeSpec(name, **fields)
                if rtt_s is not None:
                    rtts[name] = rtt_s
        if not self._source.at(("node",)):
            name = NodeName("n1")
            nodes[name] = NodeSpec(name, memory_bytes=40 << 30, host_memory_bytes=128 << 30)
        return nodes, rtts

    def _classes(self, models: Mapping[ModelName, _Model]) -> tuple[ClassSpec, ...]:
        classes = []
        for path in self._source.tables("class"):
            read = self._source.read(schema.CLASS, path)
            fields = {"service_class": ServiceClass.INTERACTIVE, "share": 1.0, **read}
            made = ClassSpec(**fields)
            self._check_models(path, made.models, models)
            for role, names in made.role_models.items():
                self._check_models((*path, "role_models", role), names, models)
            classes.append(made)
        if classes and not sum(made.share for made in classes):
            self._source.problem(("class",), "the shares of all classes are 0")
        return tuple(classes) or (ClassSpec(ServiceClass.INTERACTIVE, 1.0),)

    def _check_models(
        self, path: KeyPath, names: tuple[str, ...], models: Mapping[ModelName, _Model]
    ) -> None:
        declared = [table.get("name") for table in self._source.at(("model",)) or () if table]
        for name in names:
            if name not in models and name not in declared:
                where = path if path[-2:-1] == ("role_models",) else (*path, "models")
                hint = did_you_mean(name, models)
                self._source.problem(where, f"unknown model {name!r}", hint=hint)

    def _check_trace(self, arrivals: ArrivalSpec) -> None:
        if arrivals.kind == "trace" and (self._data is None or not arrivals.trace):
            self._source.problem(
                ("arrivals", "trace"),
                "recorded arrivals need `trace` and a data folder",
                hint="pass --data DIR",
            )

    def _recorded(self, arrivals: ArrivalSpec) -> ArrivalSpec:
        if arrivals.kind != "trace" or self._data is None:
            return arrivals
        return replace(arrivals, recorded=tuple(load_arrivals(self._data, arrivals.trace)))


def _among(keys: tuple[Key, ...], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `keys` that were written."""
    return {key.target: fields[key.target] for key in keys if key.target in fields}


def _model_spec(fields: Mapping[str, Any], length: int, batch: int) -> ModelSpec:
    return ModelSpec(
        ModelName(fields["name"]),
        max_model_len=fields.get("max_model_len", length),
        max_batch=fields.get("max_batch", batch),
        kv_cache_bytes=fields.get("kv_cache_bytes"),
    )
