"""What a node daemon is without: it stands on every machine, beside the engines."""

from __future__ import annotations

import subprocess
import sys

ABSENT = ("aiohttp", "sqlalchemy", "rich", "typer", "jinja2", "prometheus_client", "numpy")


def test_node_daemon_imports_nothing_that_only_the_coordinator_needs() -> None:
    code = (
        "import sys, maestroctl.live.node.daemon;"
        f"print([name for name in {ABSENT!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
