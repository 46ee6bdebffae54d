"""The paper's router encoder on a tiny random checkpoint, where torch and transformers are.

They are in no environment of ours but the engine's, so what is tested runs there. Without that
environment the test is skipped, unless ``MAESTROCTL_REQUIRE_ENGINE=1``.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from maestroctl.domain.llm import EngineKind, EngineSpec
from maestroctl.errors import MaestroError
from maestroctl.live.engine.capabilities import detect_environment
from maestroctl.live.engine_envs import find_python

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "tiny_modernbert.py"
LIMIT_S = 300.0


async def engine_python() -> Path:
    """Interpreter of the engine environment, which has what the encoder needs."""
    python = find_python(EngineSpec("vllm-cpu", EngineKind.VLLM_CPU))
    try:
        await detect_environment(python)
    except MaestroError as exc:
        if os.environ.get("MAESTROCTL_REQUIRE_ENGINE") == "1":
            raise
        pytest.skip(f"no engine environment here: {exc}")
    return python


@pytest.mark.engine
async def test_modernbert_answers_like_the_router(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        *(await engine_python(), PROGRAM, tmp_path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        },
    )
    try:
        out, err = await asyncio.wait_for(child.communicate(), LIMIT_S)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode == 0, err.decode()
    said = json.loads(out.decode().splitlines()[-1])
    assert said["short"] == pytest.approx(said["short_by_hand"], abs=1e-6), "unknown left out"
    assert said["long"] == pytest.approx(said["long_by_hand"], abs=1e-6), "cut at the limit"
    assert said["short"] != pytest.approx(said["long"], abs=1e-6)
    assert said["one"] == pytest.approx({"large": said["short"]["large"]}, abs=1e-6)
    assert abs(sum(said["short"].values()) - 1) > 1e-6, "each model for itself, no softmax"
    assert "holds a bert" in said["refused"]
