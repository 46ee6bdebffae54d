"""Whatever dies while a refit is swapped in, a whole model is found again: the old or the new."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("lightgbm", reason="the predict extra is not installed")

from maestroctl.live.coordinator.own_refit import refit_own
from maestroctl.live.coordinator.predictor_service import LOCAL_MODEL
from maestroctl.predict.artifact import load_artifact, save_artifact
from tests.process.test_background_refit import (
    experts,
    prepare,
    serving,
    shim,
    status,
)
from tests.support.cli import run
from tests.support.product import ServeProcess, processes_under, until

KILLED_SAVE = Path(__file__).parents[1] / "support" / "killed_save.py"


async def test_a_save_killed_at_any_file_operation_leaves_the_old_or_the_new(
    tmp_path: Path,
) -> None:
    state = f"sqlite:///{prepare(tmp_path, after_stages=0, jobs=40).home.parent}/state.db"
    old, new, folder = (tmp_path / name for name in ("old.mpred", "new.mpred", "folder"))
    assert refit_own(state, old)["better"]
    model = load_artifact(old)
    model.about["made"] = "later"  # type: ignore[index]
    save_artifact(model, new)
    folder.mkdir()
    options = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = await run(KILLED_SAVE, new, old, folder, program=(), env=options, limit_s=240)
    assert done.code == 0, done.err
    deaths = done.document
    assert deaths[-1] == {"at": "", "holds": "new", "beside": 0, "left": []}, "this one lived"
    assert [death["at"] for death in deaths[:-1]] == [
        "before the file is made",
        *["before a write", "in a write"] * sum(death["at"] == "in a write" for death in deaths),
        *("before the sync", "before the rename", "after the rename"),
    ]
    assert len(deaths) > 20, "each entry is written by itself"
    for death in deaths[:-1]:
        after = death["at"] == "after the rename"
        assert death["holds"] == ("new" if after else "old"), death
        has_part = death["at"] not in ("before the file is made", "after the rename")
        assert death["beside"] == has_part, death
        assert death["left"] == [], death


def dies(when: str, who: str) -> str:
    """What a refit process does at the rename of its model: lines for its `sitecustomize`."""
    victims = ["os.getppid()", "os.getpid()"] if who == "coordinator too" else ["os.getpid()"]
    kills = [f"os.kill({victim}, {signal.SIGKILL:d})" for victim in victims]
    rename = ["rename(source, target)"]
    steps = [*kills, *rename] if when == "before" else [*rename, *kills]
    # Its low priority is no part of what is asked here, and takes minutes on a busy machine.
    return f"""os.nice = lambda _: 0
rename = os.replace
def replace(source, target):
    {"; ".join(steps)}
os.replace = replace"""


async def is_running(serve: ServeProcess) -> None:
    """Wait for the predictor process."""

    async def runs() -> bool:
        return bool((await status(serve))["service"]["state"] == "running")

    await until(runs, 60)


async def has_failed(serve: ServeProcess) -> None:
    """Wait for the refit's end. Nothing is asked meanwhile: that would be judged by as well."""

    async def failed() -> bool:
        return bool((await status(serve))["refit"]["last_result"] == "failed")

    await until(failed, 240)


@pytest.mark.parametrize("who", ["refit alone", "coordinator too"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_at_the_rename_of_a_refit_starts_with_a_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, who: str
) -> None:
    serve = prepare(tmp_path, after_stages=90, jobs=40)
    local = serve.home / LOCAL_MODEL
    refit_own(f"sqlite:///{tmp_path}/state.db", local)
    old = local.read_bytes()
    shim(tmp_path, monkeypatch, dies(when, who))
    async with serving(serve):
        if who == "refit alone":
            await has_failed(serve)
            assert "status -9" in (await status(serve))["refit"]["reason"]
            pid = (await status(serve))["service"]["pid"]
            os.kill(pid, signal.SIGKILL)  # its next start asks what lies there now

            async def is_back() -> bool:
                now = (await status(serve))["service"]
                return bool(now["restarts"] and now["state"] == "running")

            await until(is_back, 60)
            assert await experts(serve) == [_name(local), "model"]
        else:
            await serve.wait(240)
            assert len(list(local.parent.glob("*.part"))) == (when == "before")
    assert (local.read_bytes() == old) == (when == "before")
    monkeypatch.undo()
    async with serving(serve):
        await is_running(serve)
        assert await experts(serve) == [_name(local), "model"]
        refit = (await status(serve))["refit"]
        assert refit["last_result"] == "failed", "it rests"
        assert refit["model"]["digest"].startswith(_name(local).partition("-")[2])
        assert [path.name for path in local.parent.iterdir()] == [local.name]
    assert "left out" not in serve.log.read_text()
    await until(lambda: not processes_under(tmp_path), 10)


def _name(local: Path) -> str:
    """The expert that the file, which must be whole, is asked as."""
    return f"local-{load_artifact(local).about['digest'][:12]}"
