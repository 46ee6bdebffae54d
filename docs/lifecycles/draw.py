"""Writes the pages of this folder from the tables in the code.

Run it as ``python docs/lifecycles/draw.py``.
"""

from __future__ import annotations

from pathlib import Path

from maestroctl.scheduler.node.engine_lifecycle import render_page

PAGES = {"engine.md": render_page}


def main() -> None:
    """Write every page next to this file."""
    for name, render in PAGES.items():
        (Path(__file__).parent / name).write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
