"""``maestroctl profile`` as people run it, on the stub engine: the whole command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from maestroctl.config.profile import load_profile
from maestroctl.testing.bench.stub_fleet import stub_fleet_toml
from tests.engine_support import kill_leftovers, until
from tests.support.cli import command, interrupt, read_until, run

TOKEN_S, PROMPT_S = 0.004, 0.0001


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A fleet of one stub whose costs are known."""
    text = stub_fleet_toml(tmp_path, ["stub"], max_batch=16, kv_cache="16 MiB")
    flags = f'args = ["--token-interval", "{TOKEN_S}", "--prefill-interval", "{PROMPT_S}",'
    flags += ' "--max-num-batched-tokens", "2048"]\n'
    path = tmp_path / "fleet.toml"
    path.write_text(text.replace("[[model]]", flags + "[[model]]", 1))
    return path


def home_of(tmp_path: Path) -> dict[str, str]:
    return {"MAESTROCTL_HOME": str(tmp_path / "home")}


def find_engines(fleet: Path) -> list[int]:
    """Processes that serve the fleet's model folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                argv = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"stub_engine" in argv and str(fleet.parent).encode() in argv:
                found.append(int(entry.name))
    return found


async def test_it_finds_the_costs_of_an_engine_and_serve_would_use_them(
    fleet: Path, tmp_path: Path
) -> None:
    env = home_of(tmp_path)
    first = await run("profile", "stub", "--fleet", fleet, "--quick", "--json", env=env)
    assert first.code == 0, first.err
    (written,) = first.document["profiles"]
    path = Path(written["path"])
    assert path.is_relative_to(tmp_path / "home" / "profiles")
    record = load_profile(path)
    cost = record.costs.iteration
    # The stub takes the same time per token at every batch size, and a little of its own.
    assert cost.c0_s + cost.c1_s == pytest.approx(TOKEN_S, rel=0.25)
    assert cost.cp_s == pytest.approx(PROMPT_S, rel=0.25)
    assert cost.c1_s < TOKEN_S / 10
    assert record.missing == ()
    assert {point.batch for point in record.decode} >= {1, 2, 4, 8, 16}
    assert record.check is not None
    assert record.check.batches == (1, 16)
    assert 0 < record.costs.wake_s < record.costs.cold_start_s
    assert not find_engines(fleet)

    again = await run("profile", "--fleet", fleet, "--quick", env=env)
    assert again.code == 0, again.err
    assert f"Wrote {path}" in again.err
    assert load_profile(path).made_at >= record.made_at
    shown = await run("profile", "show", path, "--json", env=env)
    assert shown.document["costs"]["model"] == "stub"
    listed = await run("profile", "show", "--json", env=env)
    assert f"{path.parent.name}/stub" in [entry["name"] for entry in listed.document]
    same = await run("profile", "diff", path, f"{path.parent.name}/stub", "--json", env=env)
    assert {entry["change"] for entry in same.document} <= {0.0, None}


async def test_ctrl_c_keeps_what_is_measured_and_leaves_no_engine(
    fleet: Path, tmp_path: Path
) -> None:
    fleet.write_text(fleet.read_text().replace(str(TOKEN_S), "0.02"))
    out = tmp_path / "profiles"
    args = ("profile", "stub", "--fleet", fleet, "--out", out)
    async with command(*args, env=home_of(tmp_path)) as process:
        await read_until(process.stderr, "round 2", limit_s=60)
        done = await interrupt(process)
    assert done.code == 130
    (path,) = out.glob("*/stub.toml")
    record = load_profile(path)
    assert record.decode
    assert "memory" in record.missing
    assert "wake_s" in record.missing
    assert not find_engines(fleet)


async def test_ctrl_c_before_the_first_figure_writes_nothing(fleet: Path, tmp_path: Path) -> None:
    fleet.write_text(fleet.read_text().replace('"--token', '"--start-delay", "30", "--token', 1))
    args = ("profile", "stub", "--fleet", fleet, "--out", tmp_path / "profiles")
    async with command(*args, env=home_of(tmp_path)) as process:
        await read_until(process.stderr, "cold start", limit_s=60)
        done = await interrupt(process)
    assert done.code == 130
    assert "before anything could be kept" in done.err
    assert not (tmp_path / "profiles").exists()
    assert not find_engines(fleet)


async def test_a_killed_profile_leaves_no_engine(fleet: Path, tmp_path: Path) -> None:
    args = ("profile", "stub", "--fleet", fleet)
    async with command(*args, env=home_of(tmp_path)) as process:
        await read_until(process.stderr, "round 1", limit_s=60)
        assert find_engines(fleet)
        process.kill()
        await process.wait()
    await until(lambda: not find_engines(fleet), limit_s=20)
    kill_leftovers(tmp_path)


async def test_an_unknown_model_is_refused_with_the_known_ones(fleet: Path, tmp_path: Path) -> None:
    done = await run("profile", "stab", "--fleet", fleet, env=home_of(tmp_path))
    assert done.code == 2
    assert "unknown model 'stab'" in done.err
    assert "did you mean 'stub'?" in done.err


async def test_a_missing_engine_environment_is_said_with_what_to_do(tmp_path: Path) -> None:
    done = await run("profile", "smollm2", "--quick", env=home_of(tmp_path))
    assert done.code == 1
    assert "install.sh" in done.err


async def test_an_engine_that_does_not_start_is_an_error_with_its_log(
    fleet: Path, tmp_path: Path
) -> None:
    fleet.write_text(fleet.read_text().replace('"--token', '"--refuse-start", "--token', 1))
    done = await run("profile", "--fleet", fleet, "--quick", env=home_of(tmp_path))
    assert done.code == 1
    assert "before it was ready" in done.err


async def test_an_engine_that_fails_late_keeps_what_is_measured(
    fleet: Path, tmp_path: Path
) -> None:
    fleet.write_text(fleet.read_text().replace('"--token', '"--fail-wake", "always", "--token', 1))
    out = tmp_path / "profiles"
    done = await run("profile", "--fleet", fleet, "--quick", "--out", out, env=home_of(tmp_path))
    assert done.code == 1
    (path,) = out.glob("*/stub.toml")
    record = load_profile(path)
    assert record.check is not None
    assert "wake_s" in record.missing


async def test_a_model_that_is_not_ours_to_start_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[[model]]\nname = "far"\nengine = "endpoint"\nurl = "http://127.0.0.1:9"\n')
    done = await run("profile", "far", "--fleet", path, env=home_of(tmp_path))
    assert done.code == 2
    assert "is not measured" in done.err
