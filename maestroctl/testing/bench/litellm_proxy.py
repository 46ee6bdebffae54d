"""A LiteLLM proxy in front of a stub engine, for comparison.

It lives in an environment of its own, made on demand and kept for the next time. It is run as its
documentation says, with one worker, without a database, without logging, and with everything that
would use the network switched off.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from maestroctl.testing.bench.http_client import Target
from maestroctl.testing.bench.processes import BenchError, free_port, listens, running

REQUIREMENT = "litellm[proxy]>=1.60,<2"
_INSTALL_LIMIT_S = 1200.0
_READY_LIMIT_S = 180.0
_MARK = "maestroctl-bench-ready"
"""Written last into an environment, so a broken installation is made again."""

_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it downloads a price list at start
    "LITELLM_LOG": "ERROR",
    "LITELLM_MODE": "PRODUCTION",
    "NO_PROXY": "127.0.0.1",
    # Neither side asks for a key; newer versions want this said twice.
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}


async def ensure_environment(folder: Path, say: Callable[[str], None]) -> Path:
    """The `litellm` program of an environment in this folder, installed there on first use.

    Raises:
        BenchError: it cannot be installed.
    """
    mark = folder / _MARK
    program = folder / "bin" / "litellm"
    if mark.exists() and mark.read_text() == REQUIREMENT and program.exists():
        return program
    say(f"installing {REQUIREMENT} into {folder} (once, takes minutes)")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    await _run(sys.executable, "-m", "venv", str(folder))
    pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
    await _run(*pip, "--no-input", "install", "-q", REQUIREMENT)
    mark.write_text(REQUIREMENT)
    return program


async def read_version(program: Path) -> str:
    """The version that is installed."""
    python = program.with_name("python")
    question = "import importlib.metadata as m; print(m.version('litellm'))"
    return (await _run(str(python), "-I", "-c", question)).strip()


@asynccontextmanager
async def running_litellm(
    program: Path, folder: Path, model: str, stub: Target
) -> AsyncIterator[tuple[Target, int]]:
    """Run it in front of a stub engine on TCP; yields where it listens and its process id.

    Args:
        program: from `ensure_environment`.
        folder: takes its configuration and log.
        model: name of the model, the same on both sides.
        stub: where the stub engine listens.

    Raises:
        BenchError: it does not start.
    """
    config = folder / "litellm.yaml"
    config.write_text(_config(model, stub))
    target = Target(host="127.0.0.1", port=free_port())
    argv = [str(program), "--config", str(config), "--host", target.host, "--port"]
    argv += [str(target.port), "--num_workers", "1", "--telemetry", "False"]
    async with running(
        argv, folder / "litellm.log", lambda: listens(target), env=_QUIET, limit_s=_READY_LIMIT_S
    ) as one:
        yield target, one.pid


def _config(model: str, stub: Target) -> str:
    return f"""\
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: http://{stub.host}:{stub.port}/v1
      api_key: none
litellm_settings:
  telemetry: false
"""


async def _run(*argv: str) -> str:
    """Run a program to its end; what it printed.

    Raises:
        BenchError: it failed.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), _INSTALL_LIMIT_S)
    except TimeoutError:
        raise BenchError(f"{' '.join(argv[:5])} took over {_INSTALL_LIMIT_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = [line for line in err.decode(errors="replace").splitlines() if "ERROR" in line]
        raise BenchError(f"{' '.join(argv[:5])} failed: {' / '.join(lines[-2:]) or err[-300:]!r}")
    return out.decode(errors="replace")
