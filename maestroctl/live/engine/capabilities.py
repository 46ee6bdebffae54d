"""What each version of an engine can do, and which version an environment holds.

A capability that is missing removes a rung of the degradation ladder, never the whole engine: a
version without `WORKER_SLEEP` on the CPU is still started, served and stopped. Only a version
below `OLDEST_VLLM` is refused.

The environment is asked once by running its python on a few lines that read package metadata;
vLLM itself is not imported (that takes seconds).
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from maestroctl.domain.llm import EngineKind
from maestroctl.errors import CapabilityMissing, ConfigError, EngineError

Version = tuple[int, int, int]

OLDEST_VLLM: Version = (0, 24, 0)
NEWEST_TRIED_VLLM: Version = (0, 32, 0)
NEWEST_TRIED_WITH_KVCACHED: Version = (0, 24, 0)  # stated by kvcached 0.1.6
_DETECTION_LIMIT_S = 60.0


class Capability(StrEnum):
    """Something an engine may or may not be able to do."""

    UNIX_SOCKET = "unix_socket"
    REQUEST_ID_HEADERS = "request_id_headers"
    PAUSE_KEEP = "pause_keep"
    ABORT_REQUESTS = "abort_requests"
    COLLECTIVE_RPC = "collective_rpc"
    SLEEP_HOST = "sleep_host"
    """Sleep with the weights in host memory (level 1)."""
    SLEEP_DISK = "sleep_disk"
    """Sleep with the weights dropped and read again (level 2, or our worker extension)."""
    WORKER_SLEEP = "worker_sleep"
    """Our worker extension drops and restores weights and KV on the CPU."""
    SUSPEND = "suspend"
    """Give memory back in the middle of a generation and go on later."""
    ELASTIC_KV = "elastic_kv"
    """kvcached: the KV limit can be changed while the engine runs."""


# First and last version on which each was seen to work; None = no upper bound is known.
# The worker extension reaches into internals, so it is trusted on the versions it was tried on.
_TABLE: dict[EngineKind, dict[Capability, tuple[Version, Version | None]]] = {
    EngineKind.VLLM: {
        Capability.UNIX_SOCKET: ((0, 24, 0), None),
        Capability.REQUEST_ID_HEADERS: ((0, 24, 0), None),
        Capability.PAUSE_KEEP: ((0, 24, 0), None),
        Capability.ABORT_REQUESTS: ((0, 27, 0), None),
        Capability.COLLECTIVE_RPC: ((0, 24, 0), None),
        Capability.SLEEP_HOST: ((0, 24, 0), None),
        Capability.SLEEP_DISK: ((0, 24, 0), None),
        Capability.SUSPEND: ((0, 27, 0), None),
    },
    EngineKind.VLLM_CPU: {
        Capability.UNIX_SOCKET: ((0, 24, 0), None),
        Capability.REQUEST_ID_HEADERS: ((0, 24, 0), None),
        Capability.PAUSE_KEEP: ((0, 24, 0), None),
        Capability.ABORT_REQUESTS: ((0, 27, 0), None),
        Capability.COLLECTIVE_RPC: ((0, 24, 0), None),
        Capability.WORKER_SLEEP: ((0, 24, 0), NEWEST_TRIED_VLLM),
        Capability.SLEEP_DISK: ((0, 24, 0), NEWEST_TRIED_VLLM),
        Capability.SUSPEND: ((0, 27, 0), NEWEST_TRIED_VLLM),
    },
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one engine can do.

    Attributes:
        version: version text of the engine; empty when it has none.
        features: what it can do.
        notes: what was left out and why, for `doctor`.
    """

    version: str = ""
    features: frozenset[Capability] = frozenset()
    notes: tuple[str, ...] = ()

    def __contains__(self, capability: Capability) -> bool:
        return capability in self.features

    def require(self, capability: Capability, engine: str) -> None:
        """Raise unless the engine has the capability.

        Raises:
            CapabilityMissing: it has not.
        """
        if capability not in self.features:
            version = f" (version {self.version})" if self.version else ""
            raise CapabilityMissing(f"engine '{engine}'{version} cannot do {capability.value}")


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """What the python of an engine environment says about itself.

    Attributes:
        python: the interpreter that was asked.
        python_version: its version.
        distribution: ``vllm`` or ``vllm-cpu``; empty when neither is installed.
        vllm_version: version text; empty when not installed.
        kvcached_version: version text; empty when not installed.
        can_convert: whether GGUF files can be converted there (`gguf` and `accelerate`).
    """

    python: str
    python_version: str
    distribution: str
    vllm_version: str
    kvcached_version: str
    can_convert: bool


def parse_version(text: str) -> Version:
    """Numbers of ``0.32.0`` or ``0.32.0rc1+cpu``; missing parts are 0.

    Raises:
        ValueError: it does not begin with a number.
    """
    match = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", text)
    if match is None:
        raise ValueError(f"not a version: {text!r}")
    major, minor, patch = (int(part or 0) for part in match.groups())
    return (major, minor, patch)


def look_up_capabilities(
    kind: EngineKind, version: str, *, kvcached_version: str = ""
) -> Capabilities:
    """What an engine of this kind and version can do.

    Args:
        kind: `vllm` or `vllm-cpu`; the other kinds have no table and can do nothing special.
        version: version text.
        kvcached_version: version of kvcached beside it; empty = not installed.

    Raises:
        ConfigError: the version is older than any that is supported, or is no version.
    """
    if kind not in _TABLE:
        return Capabilities(version)
    try:
        number = parse_version(version)
    except ValueError as exc:
        raise ConfigError(f"the version of a {kind.value} engine is {version!r}") from exc
    if number < OLDEST_VLLM:
        raise ConfigError(
            f"{kind.value} {version} is not supported; the oldest supported version is "
            f"{_format(OLDEST_VLLM)}",
            hint=f"install a version from {_format(OLDEST_VLLM)} to "
            f"{_format(NEWEST_TRIED_VLLM)} in the engine's environment",
        )
    features, notes = set[Capability](), list[str]()
    for capability, (first, last) in _TABLE[kind].items():
        if number >= first and (last is None or number[:2] <= last[:2]):
            features.add(capability)
        else:
            bounds = f"from {_format(first)}" + (f" to {_format(last)}" if last else "")
            notes.append(f"no {capability.value} with {kind.value} {version} (known {bounds})")
    if kvcached_version and kind is EngineKind.VLLM:
        features.add(Capability.ELASTIC_KV)
        if number > NEWEST_TRIED_WITH_KVCACHED:
            tried = _format(NEWEST_TRIED_WITH_KVCACHED)
            notes.append(f"kvcached {kvcached_version} was tried by its makers up to vllm {tried}")
    return Capabilities(version, frozenset(features), tuple(notes))


_QUESTION = """
import importlib.metadata as m, importlib.util as u, json, sys
def v(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return ""
d = "vllm-cpu" if v("vllm-cpu") else "vllm" if v("vllm") else ""
print(json.dumps(dict(
    python_version="%d.%d.%d" % sys.version_info[:3],
    distribution=d, vllm_version=v(d) if d else "",
    kvcached_version=v("kvcached"),
    can_convert=bool(u.find_spec("gguf") and u.find_spec("accelerate")))))
"""

_facts_cache: dict[tuple[str, tuple[float, ...]], EnvironmentFacts] = {}
"""Answers by interpreter and the times its package folders last changed. Process-wide, because
the question costs 50 ms and more and the answer is a fact about files."""


async def detect_environment(python: str | Path) -> EnvironmentFacts:
    """Ask the python of an engine environment what is installed there; answers are cached.

    Raises:
        EngineError: there is no such interpreter, or it does not run.
    """
    found = shutil.which(str(python))
    if found is None:
        raise EngineError(
            f"the engine's python {python} does not exist or may not be executed",
            hint="run `install.sh`, or set `python` under `[engine.NAME]`",
        )
    key = (found, _change_times(Path(found)))
    if key not in _facts_cache:
        _facts_cache[key] = await _ask(found)
    return _facts_cache[key]


async def _ask(python: str) -> EnvironmentFacts:
    child = await asyncio.create_subprocess_exec(
        python,
        "-I",
        "-c",
        _QUESTION,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(child.communicate(), _DETECTION_LIMIT_S)
        return EnvironmentFacts(python=python, **json.loads(out))
    except TimeoutError:
        raise EngineError(
            f"the engine's python {python} did not answer in {_DETECTION_LIMIT_S:.0f} s"
        ) from None
    except (ValueError, TypeError) as exc:
        said = err.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise EngineError(f"the engine's python {python} does not work: {said[0]}") from exc
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def _change_times(python: Path) -> tuple[float, ...]:
    """When the package folders of an interpreter last changed; installing changes them."""
    folders: Iterable[Path] = (python.parent.parent / "lib").glob("python3*/site-packages")
    return tuple(folder.stat().st_mtime for folder in sorted(folders))


def _format(version: Version) -> str:
    return ".".join(map(str, version))
