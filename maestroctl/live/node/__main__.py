"""``python -m maestroctl.live.node``: the daemon without the rest of the command line.

`maestroctl node run` is the same for people; the coordinator starts this, which is lighter.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

import uvloop

from maestroctl.errors import MaestroError
from maestroctl.live.node.daemon import NodeDaemon


def run_daemon(state_dir: Path, name: str, *, debug: bool) -> None:
    """Run until the daemon ends.

    Raises:
        FleetError: another daemon owns the folder, or it cannot be used.
    """
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO,
        format=f"%(asctime)s {name} %(levelname)s %(message)s",
    )

    async def serve() -> None:
        await NodeDaemon(state_dir).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def main() -> int:
    """Parse, run, report an error in one line for the log."""
    parser = argparse.ArgumentParser(prog="maestroctl node run")
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--name", default="local")
    parser.add_argument("--debug", action="store_true")
    options = parser.parse_args()
    try:
        run_daemon(options.state_dir, options.name, debug=options.debug)
    except MaestroError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
