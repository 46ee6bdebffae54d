"""Makes the recorded logs of this folder anew: ``python -m tests.replay.record``.

To be run when a change of the decision code is wanted and the logs no longer replay. The live ones
come from a coordinator with a node daemon and stub engines, the simulated ones from a small
workload; `altered-order` is what `sjf` decided, under a header that says `fcfs`.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from maestroctl.sim.config import make_simulation
from maestroctl.sim.run import run_simulation
from tests.replay.scenario import run_a_bit_of_everything, two_models_of_which_one_fits
from tests.support.product import running_coordinator
from tests.unit.sim.files import SMALL

LOGS = Path(__file__).with_name("logs")
MUST_DIFFER = "altered-order"
MAX_BYTES = 100_000


def record_live(name: str, scratch: Path) -> None:
    """Both cores of a coordinator and its node."""

    async def run() -> None:
        async with running_coordinator(two_models_of_which_one_fits(scratch), scratch) as one:
            await run_a_bit_of_everything(one)

    asyncio.run(run())
    events = scratch / "home" / "events"
    shutil.copyfile(events / "coordinator.jsonl", LOGS / f"{name}-coordinator.jsonl")
    shutil.copyfile(events / "node-local.jsonl", LOGS / f"{name}-node.jsonl")


def record_simulated(name: str, ordering: str, scratch: Path) -> Path:
    """The coordinator and one node of a small simulation."""
    small: dict[str, Any] = {
        **SMALL,
        "run": {"jobs": 4, "seed": 3},
        "arrivals": {"kind": "poisson", "rate": 5.0},
        "policy": {"ordering": ordering},
        "network": {"rtt": "5ms", "snapshot_every": "60s"},
    }
    run_simulation(make_simulation(small), scratch)
    shutil.copyfile(scratch / "node-n1.jsonl", LOGS / f"{name}-node.jsonl")
    return shutil.copyfile(scratch / "coordinator.jsonl", LOGS / f"{name}-coordinator.jsonl")


def main() -> None:
    """Record all."""
    LOGS.mkdir(exist_ok=True)
    for path in LOGS.glob("*.jsonl"):
        path.unlink()
    for number, ordering in enumerate(("fcfs", "workflow_slo", "sjf")):
        with tempfile.TemporaryDirectory() as folder:
            path = record_simulated(f"simulated-{ordering}", ordering, Path(folder))
        if number == 2:
            head, _, rest = path.read_text().partition("\n")
            altered = re.sub(r'"ordering":"sjf"', '"ordering":"fcfs"', head)
            (LOGS / f"{MUST_DIFFER}.jsonl").write_text(f"{altered}\n{rest}")
    with tempfile.TemporaryDirectory() as folder:
        record_live("live", Path(folder))
    for path in sorted(LOGS.glob("*.jsonl")):
        print(f"{path.stat().st_size:7d} {path.name}")
        assert path.stat().st_size <= MAX_BYTES, path


if __name__ == "__main__":
    main()
