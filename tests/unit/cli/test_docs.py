"""What the documentation says can be typed, links lead somewhere, and the index is complete."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer

from maestroctl.cli.exit_codes import ExitCode
from maestroctl.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "examples" not in p.parts),
    *sorted((ROOT / "workflows").glob("*.md")),
]
GROUP = typer.main.get_command(app)


def commands() -> list[tuple[str, str]]:
    """(place, command) of every line of a console block that calls maestroctl."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.finditer(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, block.start()) + 1
            typed = re.findall(r"^\$ (maestroctl .*)$", block[1], re.MULTILINE)
            found += [(f"{page.name}:{line}", command) for command in typed]
    return found


@pytest.mark.parametrize(("place", "typed"), commands(), ids=lambda value: str(value)[:60])
def test_command_can_be_typed(place: str, typed: str) -> None:
    del place
    words = shlex.split(typed.partition(" > ")[0])[1:]
    if words[0] in ("--install-completion", "--show-completion"):
        return
    command = GROUP
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    command.make_context("maestroctl", words).close()


def test_every_command_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in GROUP.commands:
        if name != "node":
            assert f"maestroctl {name}" in text or f"`{name} " in text, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), link


def test_index_lists_every_page() -> None:
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in text, page.name


def test_decisions_are_listed_and_numbered() -> None:
    folder = ROOT / "docs" / "decisions"
    text = (folder / "README.md").read_text(encoding="utf-8")
    notes = sorted(path.name for path in folder.glob("[0-9]*.md"))
    numbers = [int(name[:4]) for name in notes]
    assert numbers == sorted(set(numbers)), "a number is used once"
    for name in notes:
        assert f"({name})" in text


def test_exit_codes_are_documented() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    for code in ExitCode:
        assert f"| {code.value} |" in text


def test_set_up_is_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Set up")[2].partition("\n## ")[0]
    assert re.findall(r"^\$ (.*)$", section, re.MULTILINE) == [
        "./install.sh demo",
        "./install.sh test",
    ]


def test_names_of_code_in_the_architecture_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"`(maestroctl\.[\w.]+):(\w+)`", text)
    assert len(names) > 12
    for module, name in names:
        assert hasattr(importlib.import_module(module), name), (module, name)
