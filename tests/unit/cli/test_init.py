"""`init` writes files that are right, and never over others unasked."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from maestroctl.cli.commands.init import write_new
from maestroctl.cli.config_check import check_files
from maestroctl.cli.main import app
from maestroctl.errors import ConfigError


def test_written_files_are_right_and_the_next_commands_are_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["init", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    files = [tmp_path / "new" / name for name in ("fleet.toml", "workflow.toml")]
    assert [file.errors for file in check_files(files)] == [(), ()]
    for word in ("wrote", "config validate", "maestroctl serve", "maestroctl submit"):
        assert word in done.output


def test_file_that_is_there_is_kept_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "workflow.toml").write_text("mine")
    done = CliRunner().invoke(app, ["init", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)
    assert "workflow.toml is there already" in str(done.exception)
    assert (tmp_path / "workflow.toml").read_text() == "mine"
    assert not (tmp_path / "fleet.toml").exists()


def test_force_overwrites(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text("mine")
    done = CliRunner().invoke(app, ["init", str(tmp_path), "--force"])
    assert done.exit_code == 0
    assert (tmp_path / "fleet.toml").read_text() != "mine"


def test_dangling_link_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="there already"):
        write_new({tmp_path / "fleet.toml": "x"}, force=False)


def test_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        write_new({tmp_path / "file" / "fleet.toml": "x"}, force=False)
