"""`hf:REPO`: weights from the local Hugging Face cache, or from the hub when it may be asked.

The cache is read directly, so an engine starts without the network when its model is there. A
download runs `huggingface_hub` of the engine's environment; ours does not need it.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path

from maestroctl.errors import ModelSourceError
from maestroctl.live.models.geometry import weight_bytes

_REPO = re.compile(r"[\w.-]+(?:/[\w.-]+)?(?:@[\w./-]+)?", re.ASCII)
_DOWNLOAD_LIMIT_S = 4 * 3600.0
_DOWNLOAD = """
import sys
from huggingface_hub import snapshot_download
patterns = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]
print(snapshot_download(sys.argv[1], revision=sys.argv[2] or None, allow_patterns=patterns))
"""


def cache_dir() -> Path:
    """Where the hub's client keeps models on this machine."""
    chosen = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(home).expanduser() / "hub"


def is_offline() -> bool:
    """Whether the environment forbids asking the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")


def find_cached(reference: str) -> Path | None:
    """Folder of a complete snapshot in the local cache, or None.

    Args:
        reference: ``ORG/NAME``, or ``ORG/NAME@REVISION``.

    Raises:
        ModelSourceError: this is not the name of a repository.
    """
    repo, revision = _split(reference)
    folder = cache_dir() / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / (revision or "main")
    ref = folder / "refs" / (revision or "main")
    if not snapshot.is_dir() and ref.is_file():
        snapshot = folder / "snapshots" / ref.read_text().strip()
    if (snapshot / "config.json").exists() and weight_bytes(snapshot) > 0:
        return snapshot
    return None


async def prepare_hf_model(reference: str, python: Path, progress: Callable[[str], None]) -> Path:
    """Folder of a snapshot, downloaded when it is not in the cache.

    Raises:
        ModelSourceError: it is not cached and cannot be downloaded.
    """
    cached = find_cached(reference)
    if cached is not None:
        return cached
    if is_offline():
        raise ModelSourceError(
            f"hf:{reference} is not in {cache_dir()}, and HF_HUB_OFFLINE forbids asking the hub",
            hint="unset HF_HUB_OFFLINE, or download the model elsewhere and use path:FOLDER",
        )
    repo, revision = _split(reference)
    progress(f"downloading {reference} from the hub")
    child = await asyncio.create_subprocess_exec(
        str(python),
        "-I",
        "-c",
        _DOWNLOAD,
        repo,
        revision or "",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(child.communicate(), _DOWNLOAD_LIMIT_S)
    except TimeoutError:
        raise ModelSourceError(f"downloading hf:{reference} took more than four hours") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        said = (err.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise ModelSourceError(
            f"hf:{reference} could not be downloaded: {said[:300]}",
            hint="check the name and the network; a private repository needs `hf auth login`",
        )
    return Path(out.decode().strip().splitlines()[-1])


def _split(reference: str) -> tuple[str, str | None]:
    if _REPO.fullmatch(reference) is None or ".." in reference:
        raise ModelSourceError(f"hf:{reference} is not the name of a repository")
    repo, _, revision = reference.partition("@")
    return repo, revision or None
