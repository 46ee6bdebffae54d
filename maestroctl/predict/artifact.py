"""Versioned, hashed artifacts: one zip of JSON, LightGBM text and numpy arrays. Never a pickle.

``manifest.json`` names the format, the schema, the library versions and the SHA-256 of every other
entry. The *digest* of an artifact is the SHA-256 of its manifest, so it covers every byte that is
read. A digest that is known beforehand (of the shipped artifact; of another one as `[predictor]
digest` has it) is checked before anything is parsed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maestroctl.errors import ArtifactMissing, PredictorError, SchemaMismatch
from maestroctl.predict.artifact_facts import partial_path
from maestroctl.predict.embedding import TextEncoder, WindowEmbedder
from maestroctl.predict.encoders.minilm import MiniLmEncoder
from maestroctl.predict.encoders.none import NoEncoder
from maestroctl.predict.encoders.projected import ProjectedEncoder
from maestroctl.predict.encoders.sketch import SketchEncoder
from maestroctl.predict.encoders.static import StaticEncoder
from maestroctl.predict.features import CATEGORY_NAMES, NUMBER_NAMES, FeatureSchema, RowBuilder
from maestroctl.predict.forest_arrays import ForestArrays
from maestroctl.predict.gbm import Gbm
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.output_length import HEADS, OutputLengthModel
from maestroctl.predict.remaining_length import RemainingLengthModel
from maestroctl.predict.semantic_router import SemanticRouter
from maestroctl.predict.stage_input import StageInput
from maestroctl.predict.tool_intent import ToolIntentModel

FORMAT = "maestroctl-predictor"
FORMAT_VERSION = 1
_MAX_ENTRY_BYTES = 256 * 2**20
_EPOCH = (1980, 1, 1, 0, 0, 0)
_LIBRARIES = ("lightgbm", "numpy")

Arrays = dict[str, npt.NDArray[Any]]


class TamperedArtifact(PredictorError):
    """The bytes are not the ones that were hashed."""


@dataclass(slots=True)
class _Entries:
    """Named blobs on their way into or out of a zip."""

    blobs: dict[str, bytes]

    def put_json(self, name: str, value: Any) -> None:
        self.blobs[name] = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    def put_arrays(self, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        buffer = io.BytesIO()
        plain: Any = dict(arrays)  # numpy types the keywords as its own options
        np.savez(buffer, **plain)
        self.blobs[name] = buffer.getvalue()

    def take(self, name: str) -> bytes:
        try:
            return self.blobs[name]
        except KeyError:
            raise SchemaMismatch(f"the artifact holds no {name}") from None

    def take_json(self, name: str) -> Any:
        return json.loads(self.take(name))

    def take_text(self, name: str) -> str:
        return self.take(name).decode()

    def take_arrays(self, name: str) -> Arrays:
        with np.load(io.BytesIO(self.take(name)), allow_pickle=False) as loaded:
            return {key: loaded[key] for key in loaded.files}


def save_artifact(model: PredictorModel, path: Path) -> str:
    """Write `model` to `path` atomically.

    Returns:
        The artifact's digest.
    """
    entries = _Entries({})
    _pack_features(model, entries)
    _pack_heads(model, entries)
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "columns": [*NUMBER_NAMES, *CATEGORY_NAMES],
        "libraries": {name: metadata.version(name) for name in _LIBRARIES},
        "about": dict(model.about),
        "sha256": {name: hashlib.sha256(blob).hexdigest() for name, blob in entries.blobs.items()},
    }
    text = json.dumps(manifest, sort_keys=True, indent=1).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    with partial.open("wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, blob in {"manifest.json": text, **entries.blobs}.items():
                info = zipfile.ZipInfo(name, date_time=_EPOCH)
                archive.writestr(info, blob, zipfile.ZIP_LZMA)
        file.flush()
        os.fsync(file.fileno())  # a power cut must not leave the name without its bytes
    os.replace(partial, path)
    return hashlib.sha256(text).hexdigest()


def load_artifact(path: Path, *, digest: str | None = None) -> PredictorModel:
    """Read, verify and rebuild a model.

    Args:
        path: written by `save_artifact`.
        digest: what the artifact must hash to; None = accept what its own manifest says.

    Raises:
        ArtifactMissing: no such file.
        TamperedArtifact: a hash differs, or the file is damaged.
        SchemaMismatch: made for another format, feature list or library major version.
    """
    blobs, manifest = _read_verified(path, digest)
    try:
        _check_schema(manifest, path)
        model = _rebuild(_Entries(blobs), manifest)
        # What is missing or of another shape shows here, and not at every stage of a fleet.
        model.predict([StageInput(candidates=("a", "b"), tools_available=1, tail="a")])
    except SchemaMismatch:
        raise
    except Exception as exc:  # parts that were changed together with their hashes raise anything
        raise SchemaMismatch(f"{path}: the artifact does not fit together: {exc!r}") from exc
    return model


def read_about(path: Path) -> dict[str, Any]:
    """Manifest of an artifact and its digest (key ``digest``), without building the model."""
    blobs, manifest = _read_verified(path, None)
    size = sum(len(blob) for blob in blobs.values())
    return {**manifest, "digest": manifest["digest"], "unpacked_bytes": size}


def _read_verified(path: Path, digest: str | None) -> tuple[dict[str, bytes], dict[str, Any]]:
    if not path.is_file():
        raise ArtifactMissing(f"no predictor artifact at {path}", hint="run `maestroctl train`")
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            if any(info.file_size > _MAX_ENTRY_BYTES for info in infos):
                raise TamperedArtifact(f"{path}: an entry is larger than {_MAX_ENTRY_BYTES} bytes")
            if len({info.filename for info in infos}) != len(infos):
                raise TamperedArtifact(f"{path}: an entry stands there twice")
            blobs = {info.filename: archive.read(info) for info in infos}
        text = blobs.pop("manifest.json")
        found = hashlib.sha256(text).hexdigest()
        if digest is not None and found != digest:
            raise TamperedArtifact(f"{path}: its digest is {found}, expected {digest}")
        manifest = json.loads(text)
        sums: dict[str, str] = dict(manifest["sha256"])
    except TamperedArtifact:
        raise
    except Exception as exc:
        # A damaged zip can raise nearly anything (zlib, lzma, struct, unicode, key errors).
        raise TamperedArtifact(f"{path}: cannot be read as an artifact: {exc!r}") from exc
    if set(sums) != set(blobs):
        raise TamperedArtifact(f"{path}: entries differ from the manifest")
    for name, blob in blobs.items():
        if hashlib.sha256(blob).hexdigest() != sums[name]:
            raise TamperedArtifact(f"{path}: {name} does not have the hash the manifest gives")
    return blobs, {**manifest, "digest": found}


def _check_schema(manifest: Mapping[str, Any], path: Path) -> None:
    if manifest.get("format") != FORMAT or manifest.get("version") != FORMAT_VERSION:
        raise SchemaMismatch(
            f"{path}: format {manifest.get('format')!r} version {manifest.get('version')!r},"
            f" need {FORMAT!r} version {FORMAT_VERSION}",
            hint="train again with this version of maestroctl",
        )
    if manifest.get("columns") != [*NUMBER_NAMES, *CATEGORY_NAMES]:
        raise SchemaMismatch(
            f"{path}: made for another feature list", hint="train again with this version"
        )
    for name in _LIBRARIES:
        made, here = str(manifest["libraries"].get(name)), metadata.version(name)
        if made.split(".")[0] != here.split(".")[0] and name == "lightgbm":
            raise SchemaMismatch(f"{path}: made with {name} {made}, this is {here}")


def _pack_features(model: PredictorModel, entries: _Entries) -> None:
    schema, embedder = model.builder.schema, model.builder.embedder
    entries.put_json("schema.json", schema.to_json())
    entries.put_json("encoder.json", {"name": embedder.encoder.name})
    _pack_encoder("encoder", embedder.encoder, entries)
    if model.router is not None:
        plain, arrays = model.router.to_arrays()
        encoder = model.router.embedder.encoder
        shared = model.router.embedder is embedder
        entries.put_json("router.json", {**plain, "encoder": encoder.name, "shared": shared})
        entries.put_arrays("router.npz", arrays)
        if not shared:
            _pack_encoder("router_encoder", encoder, entries)


def _pack_encoder(name: str, encoder: TextEncoder, entries: _Entries) -> None:
    if isinstance(encoder, SketchEncoder | StaticEncoder | ProjectedEncoder):
        entries.put_arrays(f"{name}.npz", encoder.to_arrays())


def _pack_heads(model: PredictorModel, entries: _Entries) -> None:
    if model.tool is not None:
        texts, arrays = model.tool.to_parts()
        entries.blobs["tool.txt"] = texts["classifier"].encode()
        entries.put_arrays("tool.npz", arrays)
    for head, gbm in model.length.heads.items():
        entries.blobs[f"length_{head}.txt"] = gbm.text.encode()
    entries.blobs["total.txt"] = model.total.gbm.text.encode()
    if model.total.forest is not None:
        entries.put_arrays("forest.npz", model.total.forest.to_arrays())
    entries.put_json(
        "heads.json",
        {
            "tool": model.tool is not None,
            "length": sorted(model.length.heads),
            "mean_variance": model.length.mean_variance,
            "offsets": model.length.offsets,
            "forest": model.total.forest is not None,
            "forest_columns": list(model.total.forest_columns),
            "form": model.total.form,
        },
    )


def _rebuild(entries: _Entries, manifest: Mapping[str, Any]) -> PredictorModel:
    schema = FeatureSchema.from_json(entries.take_json("schema.json"))
    encoder = _load_encoder("encoder", entries.take_json("encoder.json")["name"], entries)
    embedder = WindowEmbedder(encoder)
    facts = entries.take_json("heads.json")
    tool = None
    if facts["tool"]:
        texts = {"classifier": entries.take_text("tool.txt")}
        tool = ToolIntentModel.from_parts(texts, entries.take_arrays("tool.npz"))
    heads = {name: Gbm(entries.take_text(f"length_{name}.txt")) for name in facts["length"]}
    if not {"q50", "q90"} <= set(heads) <= set(HEADS):
        raise SchemaMismatch(f"length heads {sorted(heads)} are not this version's")
    forest = (
        ForestArrays.from_arrays(entries.take_arrays("forest.npz")) if facts["forest"] else None
    )
    total = RemainingLengthModel(
        Gbm(entries.take_text("total.txt")), forest, tuple(facts["forest_columns"]), facts["form"]
    )
    _check_widths(schema.width, tool, heads, total)
    router = None
    if "router.json" in entries.blobs:
        plain = entries.take_json("router.json")
        own = embedder
        if not plain["shared"]:
            own = WindowEmbedder(_load_encoder("router_encoder", plain["encoder"], entries))
        router = SemanticRouter.from_arrays(own, plain, entries.take_arrays("router.npz"))
    length = OutputLengthModel(heads, float(facts["mean_variance"]), facts["offsets"])
    about = {**manifest["about"], "digest": manifest["digest"]}
    return PredictorModel(RowBuilder(schema, embedder), tool, length, total, router, about)


def _check_widths(
    width: int, tool: ToolIntentModel | None, heads: Mapping[str, Gbm], total: RemainingLengthModel
) -> None:
    if tool is not None and tool.classifier.num_features != width:
        raise SchemaMismatch("the tool classifier was made for another row")
    if any(head.num_features != width + 1 for head in heads.values()):
        raise SchemaMismatch("a length head was made for another row")
    if any(not 0 <= column < width for column in total.forest_columns):
        raise SchemaMismatch("the forest was made for another row")
    if total.gbm.num_features != width:
        raise SchemaMismatch("the total head was made for another row")


def _load_encoder(name: str, kind: str, entries: _Entries) -> TextEncoder:
    match kind:
        case "sketch":
            return SketchEncoder.from_arrays(entries.take_arrays(f"{name}.npz"))
        case "static":
            return StaticEncoder.from_arrays(entries.take_arrays(f"{name}.npz"))
        case "minilm":
            arrays = entries.take_arrays(f"{name}.npz")
            return ProjectedEncoder.from_arrays(MiniLmEncoder(), arrays)
        case "none":
            return NoEncoder()
    raise SchemaMismatch(f"unknown text encoder {kind!r}")
