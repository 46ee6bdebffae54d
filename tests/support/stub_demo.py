"""``python -m tests.support.stub_demo FOLDER [--free BYTES] [--json] [STUB FLAGS]``: the demo on
stub engines, as a process of its own, so that it can be interrupted like the real one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from maestroctl.cli.context import terminal
from maestroctl.cli.demo.show import DemoBase, show_demo
from maestroctl.cli.exit_codes import exit_code_of
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSource
from maestroctl.live.models.sources import prepare_model
from tests.support.product import write_tiny_model


def main(argv: list[str]) -> int:
    """Run it; the exit code."""
    folder, flags = write_tiny_model(Path(argv[0]) / "tiny"), argv[1:]
    as_json = "--json" in flags
    free = int(flags[flags.index("--free") + 1]) if "--free" in flags else None
    if free is not None:
        del flags[flags.index("--free") : flags.index("--free") + 2]
    engine = EngineSpec(
        "default",
        EngineKind.VLLM_CPU,
        python=sys.executable,
        entrypoint="maestroctl.testing.stub_engine",
        version="0.32.0",
        args=tuple(flag for flag in flags if flag != "--json"),
        stop_grace_s=20.0 if "--ignore-sigterm" in flags else 2.0,
    )
    prepared = asyncio.run(prepare_model(ModelSource.parse(f"path:{folder}"), engine))
    base = DemoBase(engine, prepared, "stub engines", free_bytes=free)
    try:
        return show_demo(as_json=as_json, base=base)
    except (Exception, KeyboardInterrupt) as exc:
        if not isinstance(exc, KeyboardInterrupt):
            terminal.error(exc)
        return exit_code_of(exc)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
