"""Has the weights of a fleet's models on this machine before anything is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from maestroctl.cli import fleet_source
from maestroctl.cli.context import terminal
from maestroctl.domain.units import format_bytes
from maestroctl.live.models.sources import prepare_model


async def fetch_models(fleet_file: Path | None) -> list[dict[str, Any]]:
    """Fetch and convert every model that has a source; one line each.

    Raises:
        ModelSourceError: the first that cannot be had.
    """
    fleet = fleet_source.load(fleet_file).spec
    fetched = []
    for model in fleet.models.values():
        if model.source is None:
            continue
        with terminal.working(f"{model.name}: {model.source}") as status:

            def show(text: str, name: str = model.name, status: Any = status) -> None:
                status.update(f"{name}: {text}")
                if not terminal.err.is_terminal:
                    terminal.notice(f"{name}: {text}")

            prepared = await prepare_model(
                model.source,
                fleet.engines[model.engine],
                tensor_parallel=model.tensor_parallel,
                progress=show,
            )
        size = format_bytes(prepared.geometry.weights_bytes)
        terminal.err.print(f"{model.name}: {model.source} is ready in {prepared.folder} ({size})")
        fetched.append(
            {
                "model": model.name,
                "source": str(model.source),
                "folder": str(prepared.folder),
                "weights_bytes": prepared.geometry.weights_bytes,
            }
        )
    return fetched
