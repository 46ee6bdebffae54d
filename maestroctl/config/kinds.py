"""Kinds of value a user may write: what is expected, how it is read, how it is shown.

A kind knows one value, never a whole table. Units and bounds live here, so that every key of the
same kind refuses the same nonsense with the same words. The bounds are far outside any sensible
setting; they catch slips such as a missing unit or one zero too many.

See also: `config.tables`, which gives every key its kind.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from maestroctl.domain.ids import check_name
from maestroctl.domain.llm import HttpAction, ModelSource, SourceScheme
from maestroctl.domain.units import format_bytes, parse_bytes, parse_seconds

MAX_TEXT = 64 << 10
"""Characters of one text value."""
MAX_BYTES = 1 << 50
"""Largest size, 1 PiB."""
MAX_SECONDS = 366 * 86400.0
"""Longest time, a year."""


class Mismatch(ValueError):
    """A value is not of its kind.

    Args:
        problem: more than "not of this kind", where there is more to say.
        hint: what to try.
    """

    def __init__(self, problem: str = "", *, hint: str | None = None) -> None:
        super().__init__(problem)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value.

    Attributes:
        label: what is expected, as it reads after "expected"; also shown in the reference.
        parse: from what TOML gave to what the domain wants; raises `Mismatch` or `ValueError`.
        show: the domain's value as a person would write it.
        secret: the value is never shown.
    """

    label: str
    parse: Callable[[Any], Any]
    show: Callable[[Any], str] = lambda value: show_value(value)
    secret: bool = False


def show_value(value: Any) -> str:
    """A value as it would stand in a file, cut to a readable length."""
    if isinstance(value, StrEnum):
        value = str(value)
    if isinstance(value, tuple):
        value = list(value)
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --- text ---------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Mismatch
    if not value.strip():
        raise Mismatch("it is empty")
    if len(value) > MAX_TEXT:
        raise Mismatch(f"it has {len(value)} characters, at most {MAX_TEXT} are allowed")
    if "\0" in value:
        raise Mismatch("it has a NUL character")
    return value


TEXT = Kind("text", _text)


def one_of(options: type[StrEnum]) -> Kind:
    """One word of an enum."""
    words = [str(option) for option in options]

    def parse(value: Any) -> StrEnum:
        if not isinstance(value, str) or value not in words:
            raise Mismatch(hint=did_you_mean(value, words))
        return options(value)

    return Kind("one of " + ", ".join(f'"{word}"' for word in words), parse)


def name_of(what: str) -> Kind:
    """A name by the rule of `domain.ids`."""

    def parse(value: Any) -> str:
        return check_name(what, _text(value))

    return Kind("a name: letters, digits, . _ - + and single slashes", parse)


def _list_of(kind: Kind, *, label: str, least: int = 0) -> Kind:
    def parse(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Mismatch(hint=f"write [{show_value(value)}]" if isinstance(value, str) else None)
        if len(value) < least:
            raise Mismatch("it is empty")
        items = []
        for index, item in enumerate(value):
            try:
                items.append(kind.parse(item))
            except ValueError as exc:
                raise _element_mismatch(index, item, exc) from exc
        return tuple(items)

    return Kind(label, parse)


def _element_mismatch(index: int, item: Any, exc: ValueError) -> Mismatch:
    reason = f": {exc}" if str(exc) else ""
    hint = exc.hint if isinstance(exc, Mismatch) else None
    return Mismatch(f"element {index} is {show_value(item)}{reason}", hint=hint)


def _argument(value: Any) -> str:
    # An empty argument is a legal argument, an empty name or path is not.
    if not isinstance(value, str) or "\0" in value:
        raise Mismatch
    return value


TEXTS = _list_of(TEXT, label="a list of texts")
ARGUMENTS = _list_of(Kind("text", _argument), label="a list of texts, one per argument")


def names_of(what: str, *, least: int = 0) -> Kind:
    """A list of names without repetition."""
    inner = _list_of(name_of(what), label=f"a list of {what} names", least=least)

    def parse(value: Any) -> tuple[str, ...]:
        names: tuple[str, ...] = inner.parse(value)
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise Mismatch(f"{repeated[0]!r} is there twice")
        return names

    return Kind(inner.label, parse)


# --- numbers ------------------------------------------------------------------------------------


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Mismatch(hint="write true or false, without quotes")
    return value


BOOLEAN = Kind("true or false", _boolean)


def integer(least: int, most: int) -> Kind:
    """A whole number between two bounds, both included."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise Mismatch
        return value

    return Kind(f"a whole number from {least} to {most}", parse)


def number(least: float, most: float) -> Kind:
    """A number between two bounds, both included."""

    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Mismatch
        if not math.isfinite(value) or not least <= value <= most:
            raise Mismatch
        return float(value)

    return Kind(f"a number from {least:g} to {most:g}", parse)


def seconds(least: float = 0.0, most: float = MAX_SECONDS) -> Kind:
    """A time: seconds as a number, or text with a unit."""

    def parse(value: Any) -> float:
        time_s = _quantity(parse_seconds, value)
        if not least <= time_s <= most:
            raise Mismatch(f"it must be from {least:g} s to {most:g} s")
        return time_s

    return Kind('a time such as 2.5 or "30m"', parse, lambda value: f"{value:g}")


def milliseconds(most_s: float) -> Kind:
    """A time in milliseconds as a number, or text with a unit; the domain gets seconds."""

    def parse(value: Any) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        time_s = _quantity(parse_seconds, value / 1000 if is_number else value)
        if time_s > most_s:
            raise Mismatch(f"it must be at most {most_s:g} s")
        return time_s

    return Kind('milliseconds such as 2, or a time such as "2ms"', parse, lambda v: f"{v * 1000:g}")


def size(least: int, most: int = MAX_BYTES, *, auto: bool = False) -> Kind:
    """A size in bytes, or text with a unit; with `auto`, ``"auto"`` gives None."""

    def parse(value: Any) -> int | None:
        if auto and value == "auto":
            return None
        num_bytes = round(_quantity(parse_bytes, value))
        if not least <= num_bytes <= most:
            raise Mismatch(f"it must be from {format_bytes(least)} to {format_bytes(most)}")
        return num_bytes

    label = 'a size such as "40 GiB"' + (', or "auto"' if auto else "")
    return Kind(label, parse, lambda value: show_value(format_bytes(value).replace(".0 ", " ")))


def _quantity(parse: Callable[[Any], float], value: Any) -> float:
    """The units' parser; its own words would repeat the label, so only what they add is kept."""
    try:
        return parse(value)
    except ValueError as exc:
        negative = str(value).lstrip().startswith("-")
        raise Mismatch("it is negative" if negative else "") from exc


# --- composed values ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the gateway listens."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _listen(value: Any) -> Listen:
    host, colon, port = _text(value).rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Mismatch(hint='write "127.0.0.1:8080"; port 0 takes a free one')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise Mismatch(hint='an IPv6 address stands in brackets: "[::1]:8080"')
    if any(char.isspace() or char in "/@" for char in host):
        raise Mismatch("the host is not a name or an address")
    return Listen(host, int(port))


def _show_listen(value: Listen) -> str:
    host = f"[{value.host}]" if ":" in value.host else value.host
    return show_value(f"{host}:{value.port}")


LISTEN = Kind('"HOST:PORT"', _listen, _show_listen)


def _ssh_host(value: Any) -> str:
    host = _text(value)
    # A leading dash would be read as an option by whoever passes it to a command.
    if host.startswith("-") or any(char.isspace() for char in host):
        raise Mismatch
    return host


SSH_HOST = Kind("an SSH destination: HOST, USER@HOST or a name of ~/.ssh/config", _ssh_host)


def _url(value: Any) -> str:
    text = _text(value)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        raise Mismatch(str(exc)) from exc
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise Mismatch
    if any(char.isspace() for char in text):
        raise Mismatch("it has a space")
    if parts.username is not None or parts.password is not None:
        raise Mismatch("it carries a user or a password", hint="put the key into a file")
    return text


URL = Kind('a URL such as "http://host:8000"', _url)


_REFERENCE = re.compile(r"[A-Za-z0-9][\w.\-/=<>~!,@\[\]]*")
"""A repository or a package with an optional version; never what looks like an option."""


def _source(value: Any) -> ModelSource:
    source = ModelSource.parse(_text(value))
    is_name = _REFERENCE.fullmatch(source.reference) is not None and ".." not in source.reference
    if source.scheme is not SourceScheme.PATH and not is_name:
        raise Mismatch(f"{source.reference!r} is not the name of a repository or package")
    return source


SOURCE = Kind('"hf:REPO", "path:FOLDER" or "pypi:PACKAGE"', _source, lambda v: show_value(str(v)))


def _http_action(value: Any) -> HttpAction:
    method, _, path = _text(value).partition(" ")
    path = path.strip()
    if method not in ("GET", "POST", "PUT", "DELETE") or not path.startswith("/"):
        raise Mismatch
    if any(char.isspace() for char in path):
        raise Mismatch("the path has a space")
    return HttpAction(method, path)


HTTP_ACTION = Kind(
    'a request such as "POST /sleep?level=1"',
    _http_action,
    lambda value: show_value(f"{value.method} {value.path}"),
)


def _environment(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise Mismatch
    for key, item in value.items():
        if not key or "=" in key or "\0" in key:
            raise Mismatch(f"{key!r} is not a variable name")
        if not isinstance(item, str):
            raise Mismatch(f"the value of {key} is not a text", hint="put it in quotes")
    return dict(value)


ENVIRONMENT = Kind(
    "a table of texts",
    _environment,
    lambda value: "{" + ", ".join(f'{key} = "***"' for key in sorted(value)) + "}",
    secret=True,
)


def _json_table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Mismatch
    check_json(value)
    return value


def check_json(value: Any) -> None:
    """Refuse what JSON cannot say: dates, and numbers that are not finite.

    Raises:
        Mismatch: names the value.
    """
    if isinstance(value, dict):
        for inner in value.values():
            check_json(inner)
    elif isinstance(value, list):
        for inner in value:
            check_json(inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise Mismatch(f"{value} has no form in JSON")
    elif not isinstance(value, (str, int, float, bool)):
        raise Mismatch(f"{value} has no form in JSON", hint="put it in quotes")


JSON_TABLE = Kind("a table", _json_table)


def did_you_mean(found: Any, known: Collection[str]) -> str | None:
    """A hint that names the nearest known word, or the known words when there are few."""
    # Imported here: it costs 10 ms and is needed only for an error.
    from difflib import get_close_matches

    words = list(known)
    if isinstance(found, str):
        folded = {word.lower().replace("-", "_"): word for word in words}
        close = get_close_matches(found.lower().replace("-", "_"), folded, n=1, cutoff=0.6)
        if close:
            return f"did you mean {folded[close[0]]!r}?"
    if not words:
        return None
    return "known: " + ", ".join(words[:12]) + (", ..." if len(words) > 12 else "")
