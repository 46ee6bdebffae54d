"""`maestroctl explain`: from a running coordinator and from what one left behind."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rich.console import Console

from maestroctl.cli.explain_view import print_explanation
from tests.replay.scenario import run_jobs, two_models_of_which_one_fits
from tests.support.product import chat, running_coordinator


def printed(document: dict[str, Any], width: int) -> str:
    """What a terminal of that width shows."""
    out = io.StringIO()
    print_explanation(Console(file=out, width=width, highlight=False), document)
    return out.getvalue()


async def run_cli(home: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "maestroctl", "explain", *arguments),
        env={**os.environ, "MAESTROCTL_HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_job_is_explained_live_and_from_its_state(tmp_path: Path) -> None:
    fleet = two_models_of_which_one_fits(tmp_path)
    home = tmp_path / "home"
    state = f"sqlite:///{tmp_path}/state.db"
    async with running_coordinator(fleet, tmp_path) as coordinator:
        await run_jobs(coordinator, 1)
        (job,) = await coordinator.control.jobs(limit=1, status=None)
        job_id = job["job_id"]
        code, out, err = await run_cli(home, f"{job_id}", "--url", coordinator.url, "--json")
        assert code == 0, err
        live = json.loads(out)
        code, text, err = await run_cli(home, f"{job_id}/many", "--url", coordinator.url)
        assert code == 0, err
        assert text.count("predicted") == 3
        code, out, err = await run_cli(home, job_id[:-1] + "x", "--url", coordinator.url)
        assert (code, out) == (1, "")
        assert f"near it: {job_id}" in err
        code, out, err = await run_cli(home, f"{job_id}/mny", "--url", coordinator.url)
        assert code == 1
        assert "near it: many" in err
    check_job(live)
    code, out, err = await run_cli(home, job_id, "--state", state, "--json")
    assert code == 0, err
    assert json.loads(out)["stages"] == live["stages"]
    code, out, err = await run_cli(home, f"{job_id}/lst", "--state", state)
    assert code == 1, "as when the coordinator is asked"
    assert "did you mean last?" in err


def check_job(document: dict[str, Any]) -> None:
    """The job of the scenario: five stages, the first one had to start an engine."""
    stages = document["stages"]
    assert [stage["step"] for stage in stages] == ["first", "many", "many", "many", "last"]
    assert all({"route"} <= {r["kind"] for r in stage["decisions"]} for stage in stages)
    first, second = stages[:2]
    assert "degrade" in [r["kind"] for r in second["engine_decisions"]], second
    assert first["activation"] == "start"
    assert "start" in [r["choice"] for r in first["engine_decisions"]], first
    assert first["times"]["wake_s"] > 0
    assert first["prediction"]["output_tokens"] == 4
    assert first["prediction"]["source"]
    for width in (80, 120):
        text = printed(document, width)
        assert max(map(len, text.splitlines())) <= width
        for word in ("queue ", "wake or start ", "tokens (q90", "node ", "room "):
            assert word in text, text


async def test_a_plain_request_is_explained_by_its_job_or_stage(tmp_path: Path) -> None:
    fleet = two_models_of_which_one_fits(tmp_path)
    async with (
        running_coordinator(fleet, tmp_path) as coordinator,
        aiohttp.ClientSession(coordinator.url) as session,
    ):
        headers = {"X-Maestro-Job": "mine/1"}
        body = chat("TOKENS 5", "beta", stream=True)
        async with session.post("/v1/chat/completions", json=body, headers=headers) as answer:
            await answer.read()
        async with session.get("/api/jobs/mine%2F1/explain") as answer:
            document = await answer.json()
        (stage,) = document["stages"]
        assert stage["model"] == "beta"
        assert stage["times"]["prefill_s"] is not None
        async with session.get(f"/api/jobs/{stage['stage_id']}/explain") as answer:
            assert (await answer.json())["stages"] == [stage]
        code, text, err = await run_cli(tmp_path / "home", "mine/1", "--url", coordinator.url)
        assert code == 0, err
        assert re.search(r"prefill .*decode", text)


@pytest.mark.parametrize("width", [80, 120])
def test_terms_are_shown_by_their_names_whatever_they_are(width: int) -> None:
    candidate = {
        "name": "m@gpu1",
        "score": -1.25,
        "terms": {"A": 0.5, "T_ready": 1.75, "a_term_of_tomorrow": 3.0},
        "rejected": None,
    }
    dropped = {"name": "m@gpu2", "score": None, "terms": {}, "rejected": "its snapshot is too old"}
    record = {
        "at": 11.5,
        "kind": "route",
        "choice": "m@gpu1",
        "reason": "best score",
        "candidates": [candidate, dropped],
        "rejected_counts": {"context too long": 3},
        "input_age_s": 2.5,
    }
    stage = {
        **{"stage_id": "st-1", "step": "code", "role": "coder", "model": "m", "node": "gpu1"},
        **{"state": "over", "outcome": "finished", "reason": "", "num_attempts": 2},
        **{"arrived_at": 10.0, "times": {"queue_s": 1.5}, "engine_decisions": []},
        "prediction": {
            **{"source": "fallback", "output_q50": 10.0, "output_q90": 20.0, "p_tool": 0.25},
            **{"output_tokens": 60, "tool_called": True, "censored": False},
        },
        "decisions": [record],
    }
    job = {
        **{"job_id": "j", "workflow": "w", "status": "finished", "class": "batch"},
        **{"reason": "", "deadline_s": 60, "submitted_at": 10.0, "finished_at": 15.0},
    }
    text = printed({"job": job, "decisions": [], "stages": [stage]}, width)
    flat = " ".join(text.split())
    assert "-1.25 from A 0.5, T_ready 1.75, a_term_of_tomorrow 3" in flat
    assert "out: its snapshot is too old" in flat
    assert "3 × context too long" in flat
    assert "picture 2.5 s old" in flat
    assert "came 60, 3 × the q90; tool 25%, called" in flat
    assert "+1.500 s" in flat
