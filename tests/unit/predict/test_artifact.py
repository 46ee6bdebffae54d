"""An artifact is read back as it was written, or refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maestroctl.errors import ArtifactMissing, SchemaMismatch
from maestroctl.predict.artifact import (
    TamperedArtifact,
    load_artifact,
    read_about,
    save_artifact,
)
from maestroctl.predict.artifact_facts import sweep_partials
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.semantic_router import fit_router
from maestroctl.predict.traces import TraceJob


@pytest.fixture(scope="module")
def saved(model: PredictorModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An artifact with a router, and its digest."""
    texts = [f"question {k} " + "long " * (k % 5) for k in range(60)]
    router = fit_router(
        model.builder.embedder, texts, ["m"] * 60, [float(k % 5 > 1) for k in range(60)],
        [k % 3 for k in range(60)],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("artifact") / "a.mpred"
    return path, save_artifact(replace(model, router=router), path)


def rewrite(source: Path, target: Path, change: dict[str, bytes]) -> None:
    """Copy a zip with some entries replaced."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change.get(name, old.read(name)))


def test_an_artifact_read_back_predicts_the_same_bits(
    model: PredictorModel, jobs: list[TraceJob], saved: tuple[Path, str]
) -> None:
    path, digest = saved
    again = load_artifact(path, digest=digest)
    stages = [stage.seen for job in jobs for stage in job.stages]
    assert again.predict(stages) == model.predict(stages)
    rows = again.builder.matrix(stages)
    assert rows.tobytes() == model.builder.matrix(stages).tobytes()
    chimera = again.total.predict(rows, "chimera")
    assert chimera.tobytes() == model.total.predict(rows, "chimera").tobytes()
    assert again.router is not None
    assert set(again.router.confidence("question 3", ["m", "other"])) == {"m"}


def test_saving_twice_gives_the_same_digest(model: PredictorModel, tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    assert save_artifact(model, one) == save_artifact(model, two)
    assert one.read_bytes() == two.read_bytes()


def test_every_changed_entry_is_refused(saved: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = saved
    with zipfile.ZipFile(path) as archive:
        blobs = {name: archive.read(name) for name in archive.namelist()}
    for name, blob in blobs.items():
        if name == "manifest.json":
            continue
        bad = tmp_path / "bad.mpred"
        rewrite(path, bad, {name: blob[:-1] + bytes([blob[-1] ^ 1])})
        with pytest.raises(TamperedArtifact, match=name.split(".")[0]):
            load_artifact(bad)


def test_a_manifest_made_to_fit_is_refused_by_the_known_digest(
    saved: tuple[Path, str], tmp_path: Path
) -> None:
    path, digest = saved
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    manifest["about"] = {}
    bad = tmp_path / "bad.mpred"
    rewrite(path, bad, {"manifest.json": json.dumps(manifest).encode()})
    load_artifact(bad)
    with pytest.raises(TamperedArtifact, match="digest"):
        load_artifact(bad, digest=digest)


def test_an_added_entry_is_refused(saved: tuple[Path, str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.mpred"
    bad.write_bytes(saved[0].read_bytes())
    with zipfile.ZipFile(bad, "a") as archive:
        archive.writestr("extra.npz", b"x")
    with pytest.raises(TamperedArtifact, match="entries"):
        load_artifact(bad)


@pytest.mark.parametrize("keep", [0, 10, 1000], ids=["empty", "header", "half"])
def test_a_damaged_file_is_refused(saved: tuple[Path, str], tmp_path: Path, keep: int) -> None:
    bad = tmp_path / "bad.mpred"
    bad.write_bytes(saved[0].read_bytes()[:keep])
    with pytest.raises(TamperedArtifact):
        load_artifact(bad)


def test_a_missing_file_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ArtifactMissing) as caught:
        load_artifact(tmp_path / "none")
    assert caught.value.hint is not None
    assert "train" in caught.value.hint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("version", 99), ("columns", ["a"]), ("format", "x")),
        *(("libraries", {"lightgbm": "99.0"}), ("libraries", None), ("libraries", "1")),
    ],
)
def test_another_schema_is_refused(
    saved: tuple[Path, str], tmp_path: Path, field: str, value: object
) -> None:
    with zipfile.ZipFile(saved[0]) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    manifest[field] = value
    bad = tmp_path / "bad.mpred"
    rewrite(saved[0], bad, {"manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(SchemaMismatch):
        load_artifact(bad)


def _changed(entry: str, old: bytes) -> bytes:
    """What somebody could put there who also mends the hashes."""
    match entry:
        case "heads.json:offsets":
            return json.dumps({**json.loads(old), "offsets": {}}).encode()
        case "heads.json:columns":
            return json.dumps({**json.loads(old), "forest_columns": [10**6]}).encode()
        case "schema.json:list":
            return b"[]"
        case _:
            return b"" if entry.endswith(":empty") else b"PK\x03\x04 not a zip"


@pytest.mark.parametrize(
    "change",
    [
        "heads.json:offsets",
        "heads.json:columns",
        "schema.json:list",
        "tool.npz:empty",
        "tool.npz:bad",
    ],
)
def test_parts_that_do_not_fit_are_seen_at_load_and_not_at_every_stage(
    saved: tuple[Path, str], tmp_path: Path, change: str
) -> None:
    entry = change.split(":")[0]
    with zipfile.ZipFile(saved[0]) as archive:
        manifest, old = json.loads(archive.read("manifest.json")), archive.read(entry)
    new = _changed(change, old)
    manifest["sha256"][entry] = hashlib.sha256(new).hexdigest()
    bad = tmp_path / "bad.mpred"
    rewrite(saved[0], bad, {entry: new, "manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(SchemaMismatch):
        load_artifact(bad)


def test_pickled_arrays_are_never_opened(saved: tuple[Path, str], tmp_path: Path) -> None:
    import io

    buffer = io.BytesIO()
    np.savez(buffer, scores=np.array([{"a": 1}], dtype=object), probabilities=np.zeros(1))
    with zipfile.ZipFile(saved[0]) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    manifest["sha256"]["tool.npz"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    bad = tmp_path / "bad.mpred"
    change = {"tool.npz": buffer.getvalue(), "manifest.json": json.dumps(manifest).encode()}
    rewrite(saved[0], bad, change)
    with pytest.raises(SchemaMismatch, match="does not fit together"):
        load_artifact(bad)


def test_about_names_sources_and_digest(saved: tuple[Path, str]) -> None:
    about = read_about(saved[0])
    assert about["digest"] == saved[1]
    assert about["about"]["sources"] == ["made_bank", "made_shop"]


def test_what_a_process_left_is_swept_once_it_is_gone_or_waits_to_be_reaped(tmp_path: Path) -> None:
    place = tmp_path / "a.mpred"
    child = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()  # to its end: the child is over
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # and is left unreaped
    for number in (child.pid, os.getpid(), 2**22 + 1):
        (tmp_path / f"a.mpred.{number}.part").touch()
    sweep_partials(place)
    assert [path.name for path in tmp_path.iterdir()] == [f"a.mpred.{os.getpid()}.part"]
    child.wait()
    child.stdout.close()
