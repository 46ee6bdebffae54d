"""Which profile file belongs to a model on a device.

Looked up in order: the file that ``[[model]] profile`` names; ``profiles/<device>/`` of the working
folder; the same below ``$MAESTROCTL_HOME``; the files that come with maestroctl. Within a folder a
file fits when it is of the same weights (the same source; the same name where one of the two has
none), the same kind of engine, split and threads, and the same arguments as far as they change
what an iteration costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maestroctl.config.home import home_dir
from maestroctl.config.profile import load_profile
from maestroctl.config.shipped import shipped_dir
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSpec
from maestroctl.domain.profile import ProfileRecord
from maestroctl.errors import ConfigError

PROFILES = "profiles"

_FREE_FLAGS = ("--enable-auto-tool-choice", "--trust-remote-code", "--disable-log-requests")
_FREE_OPTIONS = (
    "--tool-call-parser",
    "--reasoning-parser",
    "--chat-template",
    "--tool-parser-plugin",
    "--served-model-name",
)
"""Arguments that change what an engine answers, not how long an iteration takes."""

_FORM_FACTOR = re.compile(r"-(sxm\d*|pcie|nvl|hbm\d*e?)\b")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a profile has to fit.

    Attributes:
        device: as `live.profile.device` names it.
        threads: CPU threads of the engine; None on a GPU.
    """

    model: ModelSpec
    engine: EngineSpec
    device: str
    threads: int | None

    def fits(self, record: ProfileRecord) -> bool:
        """Whether the record is of this model on this engine and device."""
        measured = record.engine
        return (
            self._is_same_model(record)
            and device_slug(record.device) == device_slug(self.device)
            and measured.kind is self.engine.kind
            and measured.tensor_parallel == self.model.tensor_parallel
            and measured.threads == self.threads
            and measured.args == cost_arguments([*self.engine.args, *self.model.engine_args])
        )

    def _is_same_model(self, record: ProfileRecord) -> bool:
        if record.source and self.model.source is not None:
            return record.source == str(self.model.source)
        return record.costs.model == self.model.name


@dataclass(frozen=True, slots=True)
class FoundProfile:
    """A record and the file it came from."""

    record: ProfileRecord
    path: Path


def find_profile(
    wanted: Wanted, folders: Sequence[Path], problems: list[str] | None = None
) -> FoundProfile | None:
    """The profile for a model, or None.

    Args:
        folders: from `profile_folders`.
        problems: gets a line for each file that cannot be read; such a file is passed over.

    Raises:
        ConfigError: the file that the model names has a mistake. It is used even where it was
            measured on something else: the user said so.
    """
    if wanted.model.profile is not None:
        path = Path(wanted.model.profile)
        return FoundProfile(load_profile(path), path)
    for folder in folders:
        for path in sorted((folder / device_slug(wanted.device)).glob("*.toml")):
            try:
                record = load_profile(path)
            except ConfigError as exc:
                if problems is not None:
                    problems.append(f"{path} is passed over: {exc}")
                continue
            if wanted.fits(record):
                return FoundProfile(record, path)
    return None


def profile_folders(environ: Mapping[str, str], working: Path | None = None) -> tuple[Path, ...]:
    """Folders with profiles, first match wins: project, home, shipped."""
    project = (working or Path.cwd()) / PROFILES
    folders = [project, home_dir(environ) / PROFILES]
    try:
        folders.append(shipped_dir(PROFILES))
    except ConfigError:
        pass
    return tuple(dict.fromkeys(folders))


def list_profiles(folders: Sequence[Path]) -> Iterator[Path]:
    """Every profile file of some folders."""
    for folder in folders:
        yield from sorted(folder.glob("*/*.toml"))


def profile_path(folder: Path, device: str, model: str) -> Path:
    """Where the profile of a model on a device is kept below `folder`."""
    return folder / device_slug(device) / f"{slug(model)}.toml"


def device_slug(device: str) -> str:
    """Folder name of a device: ``NVIDIA A100-SXM4-40GB`` is ``nvidia-a100-40gb``.

    The form factor is left out: the same chip is as fast on another board, nearly.
    """
    return _FORM_FACTOR.sub("", slug(device))


def slug(text: str) -> str:
    """Lower case, and single dashes in place of what has no place in a file name."""
    cleaned = re.sub(r"\((r|tm|c)\)", "", text.lower())
    return re.sub(r"[^a-z0-9.+_]+", "-", cleaned).strip("-.") or "unnamed"


def cost_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """Engine arguments without those that change nothing about the cost of an iteration."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        name = argument.partition("=")[0]
        if skip:
            skip = False
        elif name in _FREE_OPTIONS:
            skip = "=" not in argument
        elif name not in _FREE_FLAGS:
            kept.append(argument)
    return tuple(kept)


def is_profiled_kind(kind: EngineKind) -> bool:
    """Whether engines of this kind can be measured: those that are ours to start."""
    return kind in (EngineKind.VLLM, EngineKind.VLLM_CPU)
