"""A file of another kind is refused in one line that says what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from maestroctl.config import load_fleet, load_workflow
from maestroctl.config.profile import load_profile
from maestroctl.errors import ConfigError, ConfigErrors
from maestroctl.sim.config import load_simulation

FLEET = '[coordinator]\nmax_held = 5\n[[model]]\nname = "m"\nsource = "pypi:x"\n'
WORKFLOW = '[[step]]\nname = "a"\nprompt = "hi"\n'
SIMULATION = '[run]\njobs = 5\n[arrivals]\nrate = 1\n[[model]]\nname = "m"\nweights = "1 GiB"\n'
PROFILE = "[profile]\n[device]\n[memory]\n[kv]\n"

Load = Callable[[Path], object]


@pytest.mark.parametrize(
    ("load", "text", "said", "hint"),
    [
        (load_workflow, FLEET, "a fleet file, not a workflow file", "maestroctl serve"),
        (load_workflow, SIMULATION, "a simulation file", "maestroctl simulate"),
        (load_fleet, WORKFLOW, "a workflow file, not a fleet file", "maestroctl submit"),
        (load_fleet, SIMULATION, "a simulation file, not a fleet", "maestroctl simulate"),
        (load_simulation, FLEET, "a fleet file, not a simulation file", "maestroctl serve"),
        (load_simulation, WORKFLOW, "a workflow file", "maestroctl submit"),
        (load_profile, FLEET, "a fleet file, not a profile file", "maestroctl serve"),
        (load_fleet, PROFILE, "a profile file, not a fleet file", "[[model]]"),
    ],
)
def test_file_of_another_kind_is_one_mistake(
    load: Load, text: str, said: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    errors = caught.value.errors if isinstance(caught.value, ConfigErrors) else [caught.value]
    (error,) = errors
    assert said in error.message
    assert hint in str(error.hint)


def test_a_strange_table_does_not_make_it_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET + WORKFLOW)
    with pytest.raises(ConfigErrors, match="unknown table 'step'"):
        load_fleet(path)
