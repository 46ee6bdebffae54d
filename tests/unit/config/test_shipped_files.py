"""What ships with maestroctl is right: examples, starter, reference, and the blocks in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from maestroctl.config import load_workflow, parse_fleet, parse_workflow
from maestroctl.config.reference import render_reference
from maestroctl.config.shipped import shipped_dir, shipped_workflows
from maestroctl.config.starter import starter_files
from maestroctl.config.tables import Table
from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.workflow import WorkflowSpec
from maestroctl.sim.config import load_simulation

ROOT = Path(__file__).parents[3]
NAMES = ("code_review", "loop", "parallel", "research", "serial", "supervisor")
MOST_TOKENS = 400


def starter_fleet() -> FleetSpec:
    return parse_fleet(starter_files()["fleet.toml"], environ={}).spec


def test_the_six_examples_are_there() -> None:
    assert tuple(shipped_workflows()) == NAMES
    assert shipped_dir("workflows") == ROOT / "workflows"


@pytest.mark.parametrize("name", NAMES)
def test_example_runs_on_the_starter_fleet(name: str) -> None:
    spec = load_workflow(shipped_workflows()[name], starter_fleet())
    assert all(not step.models for step in spec.steps.values())


@pytest.mark.parametrize("name", NAMES)
def test_example_stays_small(name: str) -> None:
    assert _most_tokens(load_workflow(shipped_workflows()[name])) <= MOST_TOKENS


def _most_tokens(spec: WorkflowSpec) -> int:
    """Output of the longest run: every loop to its end, every fan-out to its cut."""
    rounds = dict.fromkeys(spec.steps, 1)
    for name, step in spec.steps.items():
        if step.repeat is not None:
            names = list(spec.steps)
            for inside in names[names.index(step.repeat.back_to) : names.index(name) + 1]:
                rounds[inside] *= step.repeat.at_most
    total = 0
    for name, step in spec.steps.items():
        assert step.max_tokens is not None
        cut = re.search(r"\[:(\d+)\]", step.for_each or "[:1]")
        assert cut is not None, "a fan-out of an example is cut"
        calls = 1 + (step.max_tool_rounds if step.tools else 0)
        total += step.max_tokens * rounds[name] * int(cut[1]) * calls
    return total


def test_starter_files_are_right() -> None:
    files = starter_files()
    assert list(files) == ["fleet.toml", "workflow.toml"]
    spec = parse_workflow(files["workflow.toml"], fleet=starter_fleet())
    assert spec.name == "starter"


def test_commented_parts_of_the_starter_are_right_too() -> None:
    text = re.sub(r"^# (?=\[|[a-z_]+ = )", "", starter_files()["fleet.toml"], flags=re.MULTILINE)
    fleet = parse_fleet(text, environ={}).spec
    assert set(fleet.models) == {"smollm2", "local-gguf"}
    assert set(fleet.groups) == {"coder"}
    assert set(fleet.nodes) == {"gpu1"}


def test_reference_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    command = "python -m maestroctl.config.reference > docs/configuration.md"
    assert page == render_reference(), f"run: {command}"


def test_every_default_in_the_reference_can_be_shown() -> None:
    from maestroctl.config import fleet_tables, workflow_tables

    tables: tuple[Table, ...] = fleet_tables.ALL_TABLES + workflow_tables.ALL_TABLES
    for table in tables:
        for key in table.keys:
            assert table.default_text(key)
            assert key.doc.endswith(".")


def _blocks() -> list[tuple[str, str]]:
    found = []
    for path in sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]):
        text = path.read_text()
        for match in re.finditer(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            found.append((f"{path.name}:{line}", match[1]))
    return found


@pytest.mark.parametrize(("place", "text"), _blocks(), ids=[place for place, _ in _blocks()])
def test_block_in_the_docs_is_a_file_that_loads(place: str, text: str, tmp_path: Path) -> None:
    if "[[step]]" in text:
        parse_workflow(text, file=place, fleet=starter_fleet())
    elif "[run]" in text:
        (tmp_path / "simulation.toml").write_text(text)
        load_simulation(tmp_path / "simulation.toml")
    elif "[[model]]" in text:
        parse_fleet(text, file=place, environ={})
    else:
        pytest.fail(f"{place} is neither a fleet nor a workflow; make it whole")
