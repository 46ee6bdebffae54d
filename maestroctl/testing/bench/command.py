"""What the commands of all benchmarks share: their options' form, their run, their last lines.

Exit code 0 says that everything could be measured, whether or not targets were met; 1 that a part
could not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import uvloop

from maestroctl.errors import MaestroError
from maestroctl.testing.bench.processes import BenchError, heed_terminate
from maestroctl.testing.bench.report import Section, render, summary_line, to_json_line

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """What is printed of what was measured."""

    title: str
    sections: Sequence[Section]
    figures: Mapping[str, Any]
    notes: Sequence[str] = ()


def say(text: str) -> None:
    """Progress, to standard error."""
    print(text, file=sys.stderr, flush=True)


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """For ``python -m maestroctl.testing.bench.NAME``."""
    return argparse.ArgumentParser(
        prog=f"python -m maestroctl.testing.bench.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run_bench(
    name: str, measuring: Coroutine[Any, Any, T], make_report: Callable[[T], Report]
) -> int:
    """Measure, print the table and the line of JSON; the exit code."""
    heed_terminate()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            measured = runner.run(measuring)
    except (MaestroError, BenchError) as exc:
        hint = exc.hint if isinstance(exc, MaestroError) else None
        say(f"bench-{name} cannot run: {exc}" + (f"\n  {hint}" if hint else ""))
        return 1
    report = make_report(measured)
    print(render(report.title, report.sections, report.notes))
    print("\n" + summary_line(report.sections))
    print(to_json_line(report.figures))
    return 0
