"""Every key of a document has the line it stands on."""

from __future__ import annotations

from typing import Any

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from maestroctl.config.toml_lines import Path, find_lines

DOCUMENT = '''# comment with [brackets] and "quotes"
top = 1
[coordinator] # trailing
listen = "127.0.0.1:8080"   # a = b
"quoted key" = 'x#y'
a.b."c.d" = { e = 1, f = [
  { g = 2 },
  "]",
] }

[[model]]
name = """
[[model]]
name = "no"
"""
args = ["a", "b", # comment ]
  "c"]
[model.options]
depth = 2

[[model]]
name = \'\'\'it's\'\'\'
[[model.part]]
x = 2024-01-01 10:00:00
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("coordinator",), 3),
        (("coordinator", "listen"), 4),
        (("coordinator", "quoted key"), 5),
        (("coordinator", "a", "b", "c.d"), 6),
        (("coordinator", "a", "b", "c.d", "f", 0, "g"), 7),
        (("coordinator", "a", "b", "c.d", "f", 1), 8),
        (("model", 0), 11),
        (("model", 0, "name"), 12),
        (("model", 0, "args", 2), 17),
        (("model", 0, "options", "depth"), 19),
        (("model", 1), 21),
        (("model", 1, "name"), 22),
        (("model", 1, "part", 0, "x"), 24),
    ],
    ids=str,
)
def test_key_has_the_line_it_stands_on(path: Path, line: int) -> None:
    assert find_lines(DOCUMENT)[path] == line


def test_every_path_of_the_document_has_a_line() -> None:
    assert set(_paths(tomli.loads(DOCUMENT))) == set(find_lines(DOCUMENT))


_KEYS = st.text(min_size=1, max_size=6)
_SCALARS = st.one_of(st.integers(-9, 9), st.booleans(), st.text(max_size=8))
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(_KEYS, _VALUES, max_size=4))
def test_any_document_is_scanned_whole(document: dict[str, Any]) -> None:
    text = "\n".join(f"{_quote(key)} = {_dump(value)}" for key, value in document.items())
    lines = find_lines(text)
    assert set(_paths(tomli.loads(text))) == set(lines)
    assert [lines[(key,)] for key in document] == list(range(1, len(document) + 1))


def _paths(value: Any, path: Path = ()) -> list[Path]:
    found: list[Path] = [path] if path else []
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        found += _paths(inner, (*path, key))
    return found


def _quote(text: str) -> str:
    plain = all(char.isprintable() and char not in '"\\' for char in text)
    if plain:
        return f'"{text}"'
    return '"' + "".join(f"\\U{ord(char):08x}" for char in text) + '"'


def _dump(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, list):
        return "[" + ", ".join(_dump(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quote(k)} = {_dump(v)}" for k, v in value.items()) + "}"
    return str(value)
