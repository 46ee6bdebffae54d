"""Builds a `FleetSpec` from the tables of a `Source`: steps 3 to 5 of `config.fleet`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from maestroctl.config import fleet_tables as schema
from maestroctl.config.composed_kinds import Listen
from maestroctl.config.home import HOME_VARIABLE, default_state_url, expand_state_url
from maestroctl.config.kinds import did_you_mean
from maestroctl.config.model_rules import check_model
from maestroctl.config.source import Origin, OriginKind, Source
from maestroctl.config.toml_lines import Path
from maestroctl.domain.fleet import (
    ClusterSpec,
    CoordinatorSpec,
    EventLogSpec,
    FleetSpec,
    GroupSpec,
    NodeSpec,
    PredictorSpec,
    ToolsSpec,
)
from maestroctl.domain.ids import ClusterName, ModelName, NodeName
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSource, ModelSpec, SourceScheme
from maestroctl.domain.policy import PolicySpec

LOCAL = "local"
DEFAULT_ENGINE = "default"
GROUP_OF_ALL = "auto"


class FleetLoader:
    """One pass over one source. Mistakes go to the source.

    Args:
        source: the file with its overrides.
        folder: where relative paths start.
        environ: environment.
        cuda: the default engine is `vllm`.

    Attributes:
        origins: where values came from, by key path; grows as tables are read.
    """

    def __init__(
        self, source: Source, folder: FilePath, environ: Mapping[str, str], cuda: bool
    ) -> None:
        self._source = source
        self._folder = folder
        self._environ = environ
        self._default_kind = EngineKind.VLLM if cuda else EngineKind.VLLM_CPU
        self._tables_of: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
        """What was read under each ``[[...]]``, also where it is not good enough to build."""
        self.origins: dict[str, Origin] = {}

    def fleet(self) -> FleetSpec:
        """The spec; only to be used when the source has no mistakes."""
        source = self._source
        source.known_keys((), schema.TOP_LEVEL)
        coordinator = self._coordinator()
        policy = self._single("policy", PolicySpec)
        tools = self._single("tools", ToolsSpec)
        engines = self._engines()
        clusters = self._clusters()
        models = self._models(engines)
        groups = self._groups(models)
        self._check_public_names()
        nodes = self._nodes(clusters, models)
        return FleetSpec(
            models,
            engines,
            nodes,
            clusters,
            groups,
            coordinator,
            policy,
            tools,
            event_log=self._event_log(),
            predictor=self._predictor(),
        )

    # --- single tables ---

    def _coordinator(self) -> CoordinatorSpec:
        source = self._source
        fields = (
            source.read(schema.COORDINATOR, ("coordinator",)) if self._has("coordinator") else {}
        )
        self._note("coordinator", ("coordinator",), schema.COORDINATOR.names)
        listen: Listen | None = fields.pop("listen", None)
        if listen is not None:
            fields["host"], fields["port"] = listen.host, listen.port
            keys = source.at(("coordinator", "api_keys_file"))
            if not listen.is_loopback and keys is None:
                source.problem(
                    ("coordinator", "listen"),
                    f"other machines can reach {listen.host}, so keys must be asked for",
                    hint="set api_keys_file in [coordinator], or listen on 127.0.0.1",
                )
        if "state" in fields:
            fields["state"] = expand_state_url(fields["state"], self._environ)
        else:
            fields["state"] = default_state_url(self._environ)
            if self._environ.get(HOME_VARIABLE, "").strip():
                self.origins["coordinator.state"] = Origin(OriginKind.ENVIRONMENT, HOME_VARIABLE)
        if "api_keys_file" in fields:
            fields["api_keys_file"] = self._path(fields["api_keys_file"])
        return CoordinatorSpec(**fields)

    def _single(self, name: str, spec: type[Any]) -> Any:
        table = schema.SINGLE_TABLES[name]
        fields = self._source.read(table, (name,)) if self._has(name) else {}
        self._note(name, (name,), table.names)
        return spec(**fields)

    def _event_log(self) -> EventLogSpec:
        spec: EventLogSpec = self._single("event_log", EventLogSpec)
        return replace(spec, folder=self._path(spec.folder)) if spec.folder else spec

    def _predictor(self) -> PredictorSpec:
        spec: PredictorSpec = self._single("predictor", PredictorSpec)
        return replace(spec, artifact=self._path(spec.artifact)) if spec.artifact else spec

    def _has(self, name: str) -> bool:
        return self._source.is_table((name,))

    # --- engines ---

    def _engines(self) -> dict[str, EngineSpec]:
        engines: dict[str, EngineSpec] = {}
        if self._has("engine"):
            for name in self._source.values["engine"]:
                path: Path = ("engine", name)
                if self._source.is_table(path):
                    engine = self._engine(name, path)
                    if engine is not None:
                        engines[name] = engine
        engines.setdefault(DEFAULT_ENGINE, EngineSpec(DEFAULT_ENGINE, self._default_kind))
        return engines

    def _engine(self, name: str, path: Path) -> EngineSpec | None:
        fields = self._source.read(schema.ENGINE, path)
        self._note(f"engine.{name}", path, schema.ENGINE.names)
        if "kind" not in fields and "kind" not in self._source.at(path):
            if name == DEFAULT_ENGINE:
                fields["kind"] = self._default_kind
            elif name in set(EngineKind):
                fields["kind"] = EngineKind(name)
            else:
                words = ", ".join(f'"{kind}"' for kind in EngineKind)
                self._source.problem(
                    path, "kind is missing", expected=words, hint=f"one of {words}"
                )
        if fields.get("python", "auto") != "auto":
            fields["python"] = self._path(fields["python"])
        return self._source.build(EngineSpec, path, {"name": name, **fields})

    # --- lists of tables ---

    def _clusters(self) -> dict[ClusterName, ClusterSpec]:
        clusters: dict[ClusterName, ClusterSpec] = {}
        for path, fields in self._each("cluster"):
            cluster = self._source.build(ClusterSpec, path, fields)
            if cluster is not None:
                clusters[cluster.name] = cluster
        clusters.setdefault(ClusterName(LOCAL), ClusterSpec(ClusterName(LOCAL)))
        return clusters

    def _models(self, engines: dict[str, EngineSpec]) -> dict[ModelName, ModelSpec]:
        models: dict[ModelName, ModelSpec] = {}
        for path, fields in self._each("model"):
            kind = self._engine_kind(path, fields, engines)
            if kind is not None:
                check_model(self._source, path, fields, kind)
            if isinstance(fields.get("source"), ModelSource):
                fields["source"] = self._model_source(fields["source"])
            if "api_key_file" in fields:
                fields["api_key_file"] = self._path(fields["api_key_file"])
            if "profile" in fields:
                fields["profile"] = self._path(fields["profile"])
            model = self._source.build(ModelSpec, path, fields)
            if model is not None:
                models[model.name] = model
        if not self._source.at(("model",)):
            self._source.problem(
                (), "no model is declared", hint="add [[model]] with name and source"
            )
        return models

    def _engine_kind(
        self, path: Path, fields: Mapping[str, Any], engines: dict[str, EngineSpec]
    ) -> EngineKind | None:
        name = fields.get("engine", DEFAULT_ENGINE)
        if name in set(EngineKind) and name not in engines:
            engines[name] = EngineSpec(name, EngineKind(name))
        if name in engines:
            return engines[name].kind
        if name not in (self._source.at(("engine",)) or {}):
            known = sorted({*engines, *(str(kind) for kind in EngineKind)})
            self._source.problem(
                (*path, "engine"), f"unknown engine {name!r}", hint=did_you_mean(name, known)
            )
        return None

    def _groups(self, models: Mapping[ModelName, ModelSpec]) -> dict[str, GroupSpec]:
        groups: dict[str, GroupSpec] = {}
        for path, fields in self._each("group"):
            members = self._resolve_models(path, fields, models)
            group = self._source.build(GroupSpec, path, {**fields, "models": members})
            if group is not None:
                groups[group.name] = group
        return groups

    def _nodes(
        self, clusters: Mapping[ClusterName, ClusterSpec], models: Mapping[ModelName, ModelSpec]
    ) -> dict[NodeName, NodeSpec]:
        nodes: dict[NodeName, NodeSpec] = {}
        for path, fields in self._each("node"):
            cluster = fields.get("cluster", LOCAL)
            if cluster not in clusters and cluster not in self._declared("cluster"):
                self._source.problem(
                    (*path, "cluster"),
                    f"unknown cluster {cluster!r}",
                    hint=did_you_mean(cluster, clusters),
                )
            if "models" in fields:
                fields["models"] = self._resolve_models(path, fields, models)
            node = self._source.build(NodeSpec, path, fields)
            if node is not None:
                nodes[node.name] = node
                self._check_shared_machine(path, node, nodes)
        if not self._source.at(("node",)):
            nodes[NodeName(LOCAL)] = NodeSpec(NodeName(LOCAL))
        return nodes

    def _check_shared_machine(
        self, path: Path, node: NodeSpec, nodes: Mapping[NodeName, NodeSpec]
    ) -> None:
        """Two nodes of one machine must each say their share, or both would book all of it."""
        same = [other for other in nodes.values() if other.host == node.host]
        if len(same) > 1 and any(other.memory_bytes is None for other in same):
            where = "this machine" if node.host is None else node.host
            self._source.problem(
                path,
                f"nodes {same[0].name!r} and {node.name!r} are both on {where}",
                hint="give every node of one machine its own memory, or its own host",
            )

    # --- names ---

    def _each(self, name: str) -> list[tuple[Path, dict[str, Any]]]:
        """Parsed tables of ``[[name]]``; a second one of the same name is a mistake."""
        table = schema.LIST_TABLES[name]
        found: list[tuple[Path, dict[str, Any]]] = []
        first: dict[str, Path] = {}
        for path in self._source.tables(name):
            fields = self._source.read(table, path)
            own = fields.get("name")
            if own in first:
                line = self._source.line(first[own])
                place = f" on line {line}" if line is not None else ""
                self._source.problem(
                    (*path, "name"), f"there is a {name} {own!r} already{place}", found=own
                )
                continue
            if own is not None:
                first[own] = path
                self._note(f"{name}[{own}]", path, table.names)
            found.append((path, fields))
        self._tables_of[name] = found
        return found

    def _resolve_models(
        self, path: Path, fields: Mapping[str, Any], models: Mapping[ModelName, ModelSpec]
    ) -> tuple[ModelName, ...]:
        """Members by name or alias; a name that is declared but wrong is not reported again."""
        aliases = {alias: spec.name for spec in models.values() for alias in spec.aliases}
        declared = self._declared("model")
        members: list[ModelName] = []
        for index, name in enumerate(fields.get("models", ())):
            model = ModelName(name) if name in models else aliases.get(name)
            if model is None and name not in declared:
                self._source.problem(
                    (*path, "models", index),
                    f"unknown model {name!r}",
                    hint=did_you_mean(name, [*declared, *aliases]),
                )
            elif model in members:
                self._source.problem((*path, "models", index), f"{name!r} is {model!r} again")
            else:
                members.append(model or ModelName(name))
        return tuple(members)

    def _check_public_names(self) -> None:
        """Models, aliases and groups share one name space: what a client may ask for."""
        owners: dict[str, str] = {GROUP_OF_ALL: "the group of all models"}
        for kind in ("model", "group"):
            for path, fields in self._tables_of[kind]:
                if "name" in fields:
                    name = fields["name"]
                    self._claim(owners, name, f"{kind} {name!r}", (*path, "name"))
        for path, fields in self._tables_of["model"]:
            for index, alias in enumerate(fields.get("aliases", ())):
                owner = f"an alias of model {fields.get('name', '')!r}"
                self._claim(owners, alias, owner, (*path, "aliases", index))

    def _claim(self, owners: dict[str, str], name: str, owner: str, path: Path) -> None:
        if name in owners:
            self._source.problem(path, f"{name!r} is already {owners[name]}", found=name)
        else:
            owners[name] = owner

    def _declared(self, table: str) -> list[str]:
        """Names that are written, whether or not the rest of their table is right."""
        return [fields["name"] for _, fields in self._tables_of.get(table, ()) if "name" in fields]

    # --- paths and origins ---

    def _path(self, text: str) -> str:
        """Absolute form of a path; a relative one starts at the folder of the file."""
        path = FilePath(text)
        if path.parts and path.parts[0] == "~" and self._environ.get("HOME"):
            path = FilePath(self._environ["HOME"], *path.parts[1:])
        return str(self._folder / path.expanduser())

    def _model_source(self, source: ModelSource) -> ModelSource:
        if source.scheme is not SourceScheme.PATH:
            return source
        return replace(source, reference=self._path(source.reference))

    def _note(self, prefix: str, path: Path, names: Collection[str]) -> None:
        for name in names:
            origin = self._source.origin((*path, name))
            if origin.kind is not OriginKind.DEFAULT:
                self.origins[f"{prefix}.{name}"] = origin
