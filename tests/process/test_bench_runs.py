"""The two benchmark commands, small and on stub engines: they measure, judge and leave nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from maestroctl.errors import MaestroError
from maestroctl.testing.bench import gateway, litellm_proxy, residency
from maestroctl.testing.bench.gateway_report import make_figures, make_sections
from maestroctl.testing.bench.gateway_runs import Sizes
from maestroctl.testing.bench.processes import BenchError, LoadOfOthers, module_argv, running
from maestroctl.testing.bench.residency_report import Plan
from maestroctl.testing.bench.residency_report import make_figures as make_residency_figures
from tests.engine_support import MIB, stub_order

SMALL = Sizes(
    repeats=2,
    latency_requests=20,
    load_requests=200,
    clients=8,
    stream_waves=2,
    streams=40,
    stream_tokens=5,
    token_interval_s=0.05,
    ramp_s=0.1,
    growth_requests=100,
)


def descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


async def test_the_gateway_benchmark_measures_the_product_and_leaves_nothing() -> None:
    before = descendants()
    measured = await gateway.measure(SMALL, with_litellm=False)
    assert descendants() <= before
    figures = make_figures(measured)
    assert figures["requests"]["sent"] == figures["requests"]["answered"] == 1040
    streams = figures["streams"]
    assert (streams["sent"], streams["completed"]) == (80, 80)
    assert streams["most_open"] == 40
    assert figures["added_latency_ms"]["median"] > 0
    assert figures["requests_per_s"]["ours"]["median"] > 0
    assert figures["memory"]["most_mb"] > 50
    assert figures["litellm_ratio"] is None
    sections, notes = make_sections(measured)
    assert len(sections) == 4
    assert any("--skip-litellm" in note for note in notes)


async def test_the_residency_benchmark_runs_through_its_cycles(tmp_path: Path) -> None:
    told: list[str] = []
    order = stub_order(tmp_path, "--weights-mib", "64", max_model_len=2048, max_batch=8)
    plan = Plan(cold_starts=2, cycles=3, tokens=8, kv_bytes=64 * MIB)
    seen = await residency.measure(order, plan, told.append)
    figures = make_residency_figures(seen)
    assert len(figures["cold_start_s"]["each"]) == 2
    assert figures["same_text"] == figures["cycles"] == 3
    assert figures["pss_asleep_mb"]["median"] < figures["pss_before_mb"] - 100
    assert abs(figures["pss_change"]) < 0.05
    assert len(told) == 5


async def test_an_engine_that_cannot_wake_ends_the_benchmark_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    order = stub_order(tmp_path, "--fail-wake", "always", max_model_len=2048, max_batch=8)
    before = descendants()
    with pytest.raises(MaestroError):
        await residency.measure(order, Plan(1, 1, 8, 64 * MIB), lambda _: None)
    assert descendants() <= before


async def test_a_program_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "print('out of cheese'); raise SystemExit(3)"]
    with pytest.raises(BenchError, match=r"(?s)ended with 3.*out of cheese"):
        async with running(argv, tmp_path / "log", lambda: False):
            pytest.fail("it never was ready")


async def test_a_program_that_is_never_ready_is_stopped(tmp_path: Path) -> None:
    before = descendants()
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(BenchError, match="was not ready after"):
        async with running(argv, tmp_path / "log", lambda: False, limit_s=0.2):
            pytest.fail("it never was ready")
    assert descendants() <= before


_BENCH = """
import asyncio, sys
from pathlib import Path
from maestroctl.testing.bench.processes import heed_terminate, running

async def measure():
    argv = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    log = Path(sys.argv[1])
    async with running(argv, log, lambda: log.stat().st_size > 0) as program:
        print(program.pid, flush=True)
        await asyncio.sleep(60)

heed_terminate()
with asyncio.Runner() as runner:
    runner.run(measure())
"""


def test_a_benchmark_that_is_told_to_end_stops_what_it_runs(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _BENCH, str(tmp_path / "log")]
    bench = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with bench:
        assert bench.stdout is not None
        pid = int(bench.stdout.readline())
        bench.terminate()
        assert bench.wait(30) != 0
    assert not psutil.pid_exists(pid)


async def test_litellm_that_cannot_be_installed_is_a_reason_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(litellm_proxy, "REQUIREMENT", "./no-such-folder")
    said: list[str] = []
    with pytest.raises(BenchError, match="failed"):
        await litellm_proxy.ensure_environment(tmp_path / "env", said.append)
    assert "installing" in said[0]
    assert not (tmp_path / "env" / "maestroctl-bench-ready").exists()


def test_load_of_others_does_not_count_this_process() -> None:
    load = LoadOfOthers([])
    total = sum(i * i for i in range(300_000))
    assert total > 0
    assert 0.0 <= load.cores() <= (os.cpu_count() or 1) + 0.5


def test_both_commands_explain_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    for module in (gateway, residency):
        with pytest.raises(SystemExit) as caught:
            module.main(["--help"])
        assert caught.value.code == 0
        assert "--quick" in capsys.readouterr().out
    assert module_argv("x", "y")[1:] == ["-m", "x", "y"]


def test_a_benchmark_without_its_engine_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAESTROCTL_HOME", str(tmp_path))
    assert residency.main(["--quick"]) == 1
    assert "bench-residency cannot run" in capsys.readouterr().err
