"""`submit` and what looks at jobs, against a coordinator with stub engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from maestroctl.cli.api import CoordinatorApi, CoordinatorUnreachable
from maestroctl.cli.follow import JobFollower
from maestroctl.cli.submission import read_submission
from maestroctl.cli.submit_one import submit_job
from maestroctl.cli.wiring import Coordinator
from tests.support.cli import command, finish, interrupt, read_until, run
from tests.support.product import (
    ServeProcess,
    free_port,
    running_coordinator,
    stub_fleet,
    stub_fleet_toml,
    until,
)

TWO_STEPS = """
[workflow]
name = "two"

[variables]
tone = "dry"
count = 2

[[step]]
name = "plan"
role = "planner"
prompt = "Plan {{ input }} in a {{ vars.tone }} way, {{ vars.count }} points."
max_tokens = 8

[[step]]
name = "write"
role = "writer"
after = ["plan"]
prompt = "Write: {{ steps.plan.output }}"
max_tokens = 12
"""


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    file = tmp_path / "two.toml"
    file.write_text(TWO_STEPS)
    return file


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[Coordinator]:
    """Answers at once."""
    async with running_coordinator(stub_fleet(tmp_path), tmp_path) as coordinator:
        await until(lambda: coordinator.control.not_ready() is None)
        yield coordinator


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[Coordinator]:
    """A token takes half a second."""
    fleet = stub_fleet(tmp_path, flags=("--token-interval", "0.5"))
    async with running_coordinator(fleet, tmp_path) as coordinator:
        yield coordinator


async def test_output_alone_is_printed(quick: Coordinator, workflow: Path) -> None:
    done = await run("submit", workflow, "--input", "bread", "--url", quick.url)
    assert done.code == 0, done.err
    (job,) = await quick.control.jobs(limit=10, status=None)
    document = await quick.control.job(job["job_id"])
    assert document is not None
    assert done.out == document["output"] + "\n"
    assert done.err == ""


async def test_follow_shows_each_step_on_standard_error(quick: Coordinator, workflow: Path) -> None:
    done = await run("submit", workflow, "-i", "bread", "--follow", "--url", quick.url)
    assert done.code == 0, done.err
    for text in ("plan: finished", "write: started", "write: finished", "12 tokens", "TOTAL"):
        assert text in done.err
    assert "finished" not in done.out


async def test_json_is_one_document(quick: Coordinator, workflow: Path) -> None:
    done = await run("submit", workflow, "-i", "bread", "--json", "--url", quick.url)
    assert done.document["status"] == "finished"
    assert [stage["step"] for stage in done.document["stages"]] == ["plan", "write"]
    assert done.document["input"] == "bread"


async def test_detached_job_goes_on_and_can_be_looked_at(
    quick: Coordinator, workflow: Path
) -> None:
    done = await run("submit", workflow, "-i", "bread", "--detach", "--url", quick.url)
    job_id = done.out.strip()
    assert done.code == 0
    assert job_id.startswith("job-")

    async def status() -> str:
        return (await run("job", "show", job_id, "--json", "--url", quick.url)).document["status"]

    async def is_finished() -> bool:
        return await status() == "finished"

    await until(is_finished)
    shown = await run("job", "show", job_id, "--steps", "--url", quick.url)
    assert "planner" in shown.out
    listed = await run("jobs", "--url", quick.url)
    assert job_id in listed.out
    again = await run("job", "cancel", job_id, "--url", quick.url)
    assert again.code == 1
    assert "is over: finished" in again.err


async def test_input_comes_from_file_or_standard_input(
    quick: Coordinator, workflow: Path, tmp_path: Path
) -> None:
    file = tmp_path / "in.txt"
    file.write_text("from a file")
    done = await run("submit", workflow, "-i", f"@{file}", "--json", "--url", quick.url)
    assert done.document["input"] == "from a file"
    done = await run("submit", workflow, "-i", "-", "--json", "--url", quick.url, stdin="piped")
    assert done.document["input"] == "piped"


async def test_class_and_deadline_override_the_file(quick: Coordinator, workflow: Path) -> None:
    done = await run(
        *("submit", workflow, "-i", "x", "--class", "interactive", "--deadline", "2m"),
        *("--var", "tone=warm", "--var", "count=3", "--json", "--url", quick.url),
    )
    assert done.document["class"] == "interactive"
    assert done.document["deadline_s"] == 120.0


async def test_batch_prints_a_line_per_input_in_order(
    quick: Coordinator, workflow: Path, tmp_path: Path
) -> None:
    file = tmp_path / "in.jsonl"
    lines = ['"one"', "", '{"input": "two", "id": "second", "vars": {"tone": "warm"}}', '{"a": 1}']
    file.write_text("\n".join(lines) + "\n")
    done = await run("submit", workflow, "--inputs", file, "--parallel", "2", "--url", quick.url)
    assert done.code == 0, done.err
    results = [json.loads(line) for line in done.out.splitlines()]
    assert [r["index"] for r in results] == [0, 1, 2]
    assert [r["id"] for r in results] == [None, "second", None]
    assert {r["status"] for r in results} == {"finished"}
    assert all(r["output"] and r["seconds"] > 0 for r in results)
    assert "3 of 3 runs finished" in done.err


async def test_batch_as_json_is_one_document_with_a_summary(
    quick: Coordinator, workflow: Path
) -> None:
    done = await run(
        "submit", workflow, "--inputs", "-", "--json", "--url", quick.url, stdin='"a"\n"b"\n'
    )
    assert done.document["summary"]["finished"] == 2
    assert len(done.document["results"]) == 2


async def test_detached_batch_prints_ids(quick: Coordinator, workflow: Path) -> None:
    done = await run(
        "submit", workflow, "--inputs", "-", "--detach", "--url", quick.url, stdin='"a"\n"b"\n'
    )
    assert len(done.out.split()) == 2


async def test_failed_job_exits_1_and_says_why(tmp_path: Path, workflow: Path) -> None:
    fleet = stub_fleet(tmp_path, flags=("--exit-at-token", "3"))
    async with running_coordinator(fleet, tmp_path) as coordinator:
        done = await run("submit", workflow, "-i", "x", "--url", coordinator.url)
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith("Error: job-")
    assert "failed" in done.err
    assert "maestroctl job show job-" in done.err


async def test_unknown_model_is_refused_with_exit_code_2(
    quick: Coordinator, tmp_path: Path
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('[[step]]\nname = "a"\nprompt = "hi"\nmodels = ["nobody"]\n')
    done = await run("submit", file, "--url", quick.url)
    assert done.code == 2
    assert "nobody" in done.err


@pytest.mark.parametrize("options", [(), ("--follow",), ("--inputs", "-")], ids=str)
async def test_ctrl_c_cancels_what_was_submitted(
    slow: Coordinator, workflow: Path, options: tuple[str, ...]
) -> None:
    given = () if options == ("--inputs", "-") else ("--input", "x")
    args = ("submit", workflow, *given, *options, "--url", slow.url)
    async with command(*args, stdin='"a"\n' if "--inputs" in options else None) as process:

        async def is_running() -> bool:
            return bool(slow.control.running())

        await until(is_running)
        done = await interrupt(process)
    assert done.code == 130
    assert "is cancelled" in done.err

    async def is_cancelled() -> bool:
        (job,) = await slow.control.jobs(limit=5, status=None)
        return job["status"] == "cancelled"

    await until(is_cancelled)


async def test_job_is_followed_through_a_restart_of_the_coordinator(
    tmp_path: Path, workflow: Path
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(stub_fleet_toml(tmp_path, flags=("--token-interval", "0.2")))
    serve = ServeProcess(file, tmp_path / "home", free_port())
    try:
        await serve.start()
        async with command(
            "submit", workflow, "-i", "x", "--follow", "--url", serve.url
        ) as process:
            await read_until(process.stderr, "plan: finished")
            serve.send(9)
            await serve.wait()
            lost = await read_until(process.stderr, "Lost the coordinator")
            assert "It resumes the job" in lost
            await serve.start()
            done = await finish(process)
    finally:
        await serve.stop()
    assert done.code == 0, done.err
    assert "The coordinator is back." in done.err
    assert done.out.strip()


async def test_coordinator_that_stays_away_is_a_clear_error(tmp_path: Path, workflow: Path) -> None:
    fleet = stub_fleet(tmp_path, flags=("--token-interval", "0.5"))
    notes: list[str] = []
    async with running_coordinator(fleet, tmp_path) as coordinator:
        api = CoordinatorApi(coordinator.url)
        async with api:
            job = read_submission(
                workflow, input_text="x", assignments=(), service_class=None, deadline=None
            )
            job_id = await submit_job(api, job)
            follower = JobFollower(api, job_id, on_trouble=notes.append, patience_s=0.5)
            task = asyncio.create_task(follower.wait())
            await until(lambda: coordinator.control.running())
            await coordinator.gateway.stop()
            with pytest.raises(CoordinatorUnreachable, match="has not come back"):
                await asyncio.wait_for(task, 20)
    assert len(notes) == 1


async def test_no_coordinator_is_exit_code_3_with_the_command_to_start_one(workflow: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    for args in (("submit", workflow, "-i", "x"), ("ps",), ("jobs",), ("models", "list")):
        done = await run(*args, "--url", url)
        assert done.code == 3
        assert "no coordinator answers" in done.err
        assert "maestroctl serve" in done.err
        assert done.out == ""


async def test_ps_and_models_show_every_model(quick: Coordinator) -> None:
    shown = await run("ps", "--url", quick.url)
    assert "alpha" in shown.out
    assert "stopped" in shown.out
    document = (await run("ps", "--json", "--url", quick.url)).document
    assert document["models"][0]["status"] == "stopped"
    assert "auto" in (await run("models", "list", "--url", quick.url)).out


async def test_models_are_moved_by_hand(quick: Coordinator) -> None:
    async def status() -> str:
        document = (await run("ps", "--json", "--url", quick.url)).document
        return str(document["models"][0]["status"])

    for action, ending in (("wake", "idle"), ("sleep", "sleeping"), ("evict", "stopped")):
        done = await run("models", action, "alpha", "--url", quick.url)
        assert done.code == 0, done.err
        assert f"alpha: {action} done" in done.err
        assert await status() == ending
    for action, found in (
        ("sleep", "is stopped; nothing to put to sleep"),
        ("evict", "is stopped; nothing to stop"),
        ("unpin", "is not pinned"),
    ):
        nothing = await run("models", action, "alpha", "--url", quick.url)
        assert (nothing.code, nothing.err.strip()) == (0, f"alpha {found}")
    refused = await run("models", "wake", "nobody", "--url", quick.url)
    assert refused.code != 0
    assert "nobody" in refused.err
