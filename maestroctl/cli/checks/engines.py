"""Engine environments and models: what is installed, what it can do, what is left out."""

from __future__ import annotations

import sys
from pathlib import Path

from maestroctl.cli.checks.check import Check, Level
from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSpec, SourceScheme
from maestroctl.errors import ConfigError, ModelSourceError
from maestroctl.live import engine_envs
from maestroctl.live.engine.capabilities import Capability, look_up_capabilities
from maestroctl.live.models.hf import find_cached
from maestroctl.live.models.manifest import find_damage
from maestroctl.live.models.sources import check_model_dir

AREA_ENGINES = "engines"
AREA_MODELS = "models"

_RUNGS = {
    EngineKind.VLLM: {
        Capability.SLEEP_HOST: "level 1, sleep with weights in host memory",
        Capability.SUSPEND: "level 4, suspend an engine that is generating",
        Capability.ELASTIC_KV: "elastic KV limits (kvcached)",
    },
    EngineKind.VLLM_CPU: {
        Capability.WORKER_SLEEP: "level 1, sleep",
        Capability.SUSPEND: "level 4, suspend an engine that is generating",
    },
}
"""What the scheduler loses without an ability. Levels are those of the degradation ladder."""


async def check_engines(fleet: FleetSpec, home: Path) -> list[Check]:
    """The environment of every engine that a model of the fleet uses."""
    checks: list[Check] = []
    for name in dict.fromkeys(model.engine for model in fleet.models.values()):
        checks += await _check_engine(fleet.engines[name], home)
    return checks


async def _check_engine(spec: EngineSpec, home: Path) -> list[Check]:
    name = spec.name if spec.name == spec.kind else f"{spec.name} ({spec.kind})"
    if spec.kind not in (EngineKind.VLLM, EngineKind.VLLM_CPU):
        return [Check(AREA_ENGINES, name, Level.OK, "brings its own environment")]
    if spec.entrypoint is not None:
        return [Check(AREA_ENGINES, name, Level.OK, f"python -m {spec.entrypoint}")]
    report = await engine_envs.describe_environment(spec, home)
    if report.facts is None or not report.is_usable:
        fix = f"./install.sh, or: {_runnable(report.fix)}"
        return [Check(AREA_ENGINES, name, Level.MISSING, report.problem, fix)]
    facts = report.facts
    if spec.version is not None and spec.version != facts.vllm_version:
        found = f"{facts.python} has {facts.vllm_version}, the fleet asks for {spec.version}"
        return [Check(AREA_ENGINES, name, Level.MISSING, found, _runnable(report.fix))]
    found = f"{facts.distribution} {facts.vllm_version}, Python {facts.python_version}"
    if facts.kvcached_version:
        found += f", kvcached {facts.kvcached_version}"
    checks = [Check(AREA_ENGINES, name, Level.OK, f"{found} ({report.python})")]
    if not facts.can_convert:
        fix = f"{report.python} -m pip install gguf accelerate"
        checks.append(Check(AREA_ENGINES, name, Level.WARN, "cannot convert pypi: models", fix))
    return checks + _missing_rungs(name, spec.kind, facts.vllm_version, facts.kvcached_version)


def _missing_rungs(name: str, kind: EngineKind, version: str, kvcached: str) -> list[Check]:
    try:
        able = look_up_capabilities(kind, version, kvcached_version=kvcached)
    except ConfigError as exc:
        return [Check(AREA_ENGINES, name, Level.MISSING, exc.message, exc.hint or "")]
    return [
        Check(
            AREA_ENGINES,
            name,
            Level.WARN,
            f"left out: {rung}",
            _rung_fix(capability, kind),
        )
        for capability, rung in _RUNGS[kind].items()
        if capability not in able
    ]


def _rung_fix(capability: Capability, kind: EngineKind) -> str:
    if capability is Capability.ELASTIC_KV:
        return "install kvcached beside the engine"
    default = engine_envs.DEFAULT_VERSIONS[kind]
    return _runnable(f"python -m maestroctl.live.engine_envs create {kind} --version {default}")


def _runnable(command: str) -> str:
    """The command with the interpreter that has maestroctl, which may not be on the path."""
    return command.replace("python -m", f"{sys.executable} -m", 1)


def check_models(fleet: FleetSpec, home: Path, fleet_file: str | None) -> list[Check]:
    """Whether each model's weights are on this machine."""
    fetch = f"maestroctl models fetch {fleet_file}" if fleet_file else "maestroctl models fetch"
    return [_check_model(model, home, fetch) for model in fleet.models.values()]


def _check_model(model: ModelSpec, home: Path, fetch: str) -> Check:
    if model.source is None:
        what = model.url or "its own command line"
        return Check(AREA_MODELS, model.name, Level.OK, what)
    where = str(model.source)
    try:
        folder, problem = _find(model, home)
    except ModelSourceError as exc:
        level = Level.MISSING if model.source.scheme is SourceScheme.PATH else Level.WARN
        return Check(AREA_MODELS, model.name, level, exc.message, exc.hint or "")
    if folder is None:
        return Check(AREA_MODELS, model.name, Level.WARN, f"{where}: {problem}", fetch)
    return Check(AREA_MODELS, model.name, Level.OK, f"{where} in {folder}")


def _find(model: ModelSpec, home: Path) -> tuple[Path | None, str]:
    """The folder with its weights, or what is wrong."""
    assert model.source is not None
    reference = model.source.reference
    if model.source.scheme is SourceScheme.PATH:
        return check_model_dir(Path(reference)), ""
    if model.source.scheme is SourceScheme.HF:
        return find_cached(reference), "not in the cache; the first start downloads it"
    folder = home / "models" / "pypi" / reference.lower().replace("_", "-")
    if not folder.is_dir():
        return None, "not fetched; the first start downloads and converts it"
    damage = find_damage(folder)
    return (None, f"damaged ({damage})") if damage else (folder, "")
