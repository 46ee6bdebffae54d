"""JSON schemas of tool arguments: which are accepted, and how arguments are checked by them.

The schema comes from a workflow file and the arguments from a model, so neither may cost much:
regular expressions are refused (one can take for ever), and so is every reference that leaves the
document (checking must not fetch anything).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maestroctl.config.kinds import Mismatch

MAX_PARTS = 5000
"""Keywords of a schema once its references are followed: ``$ref`` can double at every level."""

_REFUSED = ("pattern", "patternProperties", "$dynamicRef", "$recursiveRef")
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose keys are names chosen by the author, not keywords."""
_DATA = ("default", "const", "enum", "examples", "required")
"""Keywords whose value is data, not schema."""


def check_tool_schema(schema: Mapping[str, Any]) -> None:
    """Accept or refuse the ``parameters`` of a tool.

    Raises:
        Mismatch: it is no JSON schema, not of an object, or uses what is refused.
    """
    # Imported here: it costs 80 ms, and most workflows have no tools.
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as exc:
        where = "".join(f"[{part!r}]" for part in exc.absolute_path)
        raise Mismatch(f"{where or 'it'}: {exc.message}") from exc
    if schema.get("type", "object") != "object":
        raise Mismatch("the arguments of a tool are an object", hint='type = "object"')
    _Walk(schema).size(schema, ())


class _Walk:
    """Follows references, so that the cost of checking is known before anything is checked."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._sizes: dict[str, int] = {}

    def size(self, schema: Any, open_refs: tuple[str, ...]) -> int:
        """Keywords below `schema`; raises `Mismatch` for what is refused."""
        if isinstance(schema, list):
            return sum(self.size(inner, open_refs) for inner in schema)
        if not isinstance(schema, Mapping):
            return 1
        total = 0
        for keyword, value in schema.items():
            if keyword in _REFUSED:
                raise Mismatch(f"{keyword} is not supported", hint="check it inside the tool")
            if keyword == "$ref":
                total += self._reference(str(value), open_refs)
            elif keyword in _NAMED and isinstance(value, Mapping):
                total += sum(self.size(inner, open_refs) for inner in value.values())
            elif keyword not in _DATA:
                total += 1 + self.size(value, open_refs)
            if total > MAX_PARTS:
                raise Mismatch(f"it has more than {MAX_PARTS} parts")
        return total

    def _reference(self, ref: str, open_refs: tuple[str, ...]) -> int:
        if not ref.startswith("#/"):
            raise Mismatch(f"$ref {ref!r} leaves the schema", hint="put it under $defs")
        if ref in open_refs:
            raise Mismatch(f"$ref {ref!r} contains itself")
        if ref not in self._sizes:
            target: Any = self._root
            for part in ref[2:].split("/"):
                target = target.get(part) if isinstance(target, Mapping) else None
            if target is None:
                raise Mismatch(f"$ref {ref!r} leads nowhere")
            self._sizes[ref] = self.size(target, (*open_refs, ref))
        return self._sizes[ref]


def find_argument_mistake(schema: Mapping[str, Any], arguments: Any) -> str | None:
    """The first way in which `arguments` do not fit, for the model to read; None when they fit."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    validator = Draft202012Validator(dict(schema), registry=Registry())
    try:
        error = next(iter(validator.iter_errors(arguments)), None)
    except RecursionError:
        return "the arguments are nested too deeply"
    if error is None:
        return None
    where = ".".join(str(part) for part in error.absolute_path)
    return f"{where}: {error.message}" if where else str(error.message)
