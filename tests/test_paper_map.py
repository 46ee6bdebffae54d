"""`docs/paper-map.md` is true: every target can be imported, every test is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "paper-map.md"


class Row(NamedTuple):
    """One line of a table that has a target."""

    name: str
    paper: str
    target: str
    test: str


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"`[\w.]+:[\w.]+`", cells[3]):
            found.append(Row(cells[0], cells[1], cells[3].strip("`"), cells[4].strip("`")))
    return found


ROWS = rows()


def test_there_are_rows_and_their_names_are_unique() -> None:
    names = [row.name for row in ROWS]
    assert len(names) > 20
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Z]+-\d+[a-z]?", name) for name in names)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_target_can_be_imported(row: Row) -> None:
    module, _, name = row.target.partition(":")
    if module.startswith("maestroctl.predict."):
        pytest.importorskip("numpy")
        pytest.importorskip("lightgbm")
        pytest.importorskip("quantile_forest")
    target = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_test_is_there(row: Row) -> None:
    assert (ROOT / row.test).is_file()


def test_every_link_of_the_page_leads_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / link).exists(), link
