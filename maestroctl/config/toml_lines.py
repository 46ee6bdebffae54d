"""Which line of a TOML file each key stands on.

`tomli` gives values without places, and a message that says ``fleet.toml:12`` saves the reader a
search. This scanner runs only over text that `tomli` has already accepted, so it needs to tell
keys, strings and brackets apart and nothing else; it decodes no value.

See also: `config.source`, the only caller.
"""

from __future__ import annotations

import re
from bisect import bisect_right

import tomli

Path = tuple[str | int, ...]
"""Keys and list positions from the root of the document, for instance ``("model", 0, "name")``."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE = re.compile(r"[^,\]}#\r\n]*")
_STRINGS = (
    re.compile(r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}', re.DOTALL),
    re.compile(r"'''(?:[^']|'(?!''))*'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)


def find_lines(text: str) -> dict[Path, int]:
    """Line numbers, from 1, of every table header, key and list element of a valid document.

    Args:
        text: a document that `tomli.loads` accepts.

    Returns:
        A line per path. Elements of an array of tables get the line of their header.
    """
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._pos = 0
        self._newlines = [i for i, char in enumerate(text) if char == "\n"]
        self._counts: dict[Path, int] = {}
        """How many elements each array of tables has so far."""
        self.lines: dict[Path, int] = {}

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip_blank():
            if self._peek("["):
                table = self._header()
            else:
                self._pair(table)
        return self.lines

    # --- parts of the grammar ---

    def _header(self) -> Path:
        line = self._line()
        is_array = self._text.startswith("[[", self._pos)
        self._pos += 2 if is_array else 1
        keys = self._dotted_key()
        self._skip_to("]")
        self._pos += 2 if is_array else 1
        path: Path = ()
        for key in keys[:-1]:
            path = (*path, key)
            self._note(path, line)
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
        path = (*path, keys[-1])
        self._note(path, line)
        if is_array:
            index = self._counts.get(path, 0)
            self._counts[path] = index + 1
            path = (*path, index)
            self._note(path, line)
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for key in self._dotted_key():
            path = (*path, key)
            self._note(path, line)
        self._skip_to("=")
        self._pos += 1
        self._value(path)

    def _dotted_key(self) -> list[str]:
        keys = []
        while True:
            self._skip_blank()
            keys.append(self._simple_key())
            self._skip_blank()
            if not self._peek("."):
                return keys
            self._pos += 1

    def _simple_key(self) -> str:
        if self._peek('"') or self._peek("'"):
            start = self._pos
            self._string()
            raw = self._text[start : self._pos]
            return str(tomli.loads(f"key = {raw}")["key"])
        match = _BARE_KEY.match(self._text, self._pos)
        assert match is not None, "only valid documents are scanned"
        self._pos = match.end()
        return match[0]

    def _value(self, path: Path) -> None:
        self._skip_blank()
        if self._peek("["):
            self._array(path)
        elif self._peek("{"):
            self._inline_table(path)
        elif self._peek('"') or self._peek("'"):
            self._string()
        else:
            match = _BARE_VALUE.match(self._text, self._pos)
            assert match is not None, "the pattern matches the empty string"
            self._pos = match.end()

    def _array(self, path: Path) -> None:
        self._pos += 1
        index = 0
        while self._skip_blank() and not self._peek("]"):
            if self._peek(","):
                self._pos += 1
                continue
            self._note((*path, index), self._line())
            self._value((*path, index))
            index += 1
        self._pos += 1

    def _inline_table(self, path: Path) -> None:
        self._pos += 1
        while self._skip_blank() and not self._peek("}"):
            if self._peek(","):
                self._pos += 1
                continue
            self._pair(path)
        self._pos += 1

    def _string(self) -> None:
        for pattern in _STRINGS:
            match = pattern.match(self._text, self._pos)
            if match is not None:
                self._pos = match.end()
                return
        raise AssertionError("only valid documents are scanned")

    # --- characters ---

    def _skip_blank(self) -> bool:
        """Skip white space and comments; False at the end of the text."""
        match = _BLANK.match(self._text, self._pos)
        assert match is not None, "the pattern matches the empty string"
        self._pos = match.end()
        return self._pos < len(self._text)

    def _skip_to(self, char: str) -> None:
        self._pos = self._text.index(char, self._pos)

    def _peek(self, char: str) -> bool:
        return self._text.startswith(char, self._pos)

    def _line(self) -> int:
        return bisect_right(self._newlines, self._pos - 1) + 1

    def _note(self, path: Path, line: int) -> None:
        self.lines.setdefault(path, line)
