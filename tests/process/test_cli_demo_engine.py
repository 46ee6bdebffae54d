"""The demo as people run it, on a real engine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from maestroctl.domain.llm import EngineKind, EngineSpec
from maestroctl.errors import MaestroError
from maestroctl.live.engine.factory import find_capabilities
from tests.support.cli import run
from tests.support.product import processes_under

pytestmark = pytest.mark.engine
LIMIT_S = 900.0
"""Minutes on a machine of its own; three cold starts take long where others work, too."""


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="d"))
    yield path
    shutil.rmtree(path)


async def test_demo_on_a_real_engine_wakes_instead_of_starting_and_leaves_nothing(
    folder: Path,
) -> None:
    try:
        await find_capabilities(EngineSpec("default", EngineKind.VLLM_CPU))
    except MaestroError as exc:
        if os.environ.get("MAESTROCTL_REQUIRE_ENGINE") == "1":
            raise
        pytest.skip(f"no real engine here: {exc}")
    done = await run("demo", "--json", env={"TMPDIR": str(folder)}, limit_s=LIMIT_S)
    assert done.code == 0, done.err
    document = done.document
    assert [job["status"] for job in document["jobs"]] == ["finished"] * 3
    assert all(job["output"] for job in document["jobs"])
    assert document["plain_request"]["text"]
    if document["engines_that_fit_asleep"] == 2:
        assert document["most_awake_at_once"] == 1
        assert document["transitions"]["cold start"]["count"] == 3
        assert document["transitions"]["wake"]["count"] >= 3
        assert document["cold_over_wake"] > 3
    assert processes_under(folder) == []
    assert not [path for path in folder.iterdir() if path.name.startswith("maestroctl-demo-")]
