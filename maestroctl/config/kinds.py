"""Kinds of value a user may write: what is expected, how it is read, how it is shown.

A kind knows one value, never a whole table. Units and bounds live here, so that every key of the
same kind refuses the same nonsense with the same words. The bounds are far outside any sensible
setting; they catch slips such as a missing unit or one zero too many.

See also: `config.composed_kinds` (addresses, URLs, tables), `config.tables` (gives every key its
kind).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from maestroctl.domain.ids import check_name
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


def read_text_value(value: Any) -> str:
    """A text that is not empty, not huge and has no NUL; raises `Mismatch` otherwise."""
    if not isinstance(value, str):
        raise Mismatch
    if not value.strip():
        raise Mismatch("it is empty")
    if len(value) > MAX_TEXT:
        raise Mismatch(f"it has {len(value)} characters, at most {MAX_TEXT} are allowed")
    if "\0" in value:
        raise Mismatch("it has a NUL character")
    return value


TEXT = Kind("text", read_text_value)


def word_of(words: Collection[str]) -> Kind:
    """One of some words."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise Mismatch(hint=did_you_mean(value, words))
        return value

    return Kind("one of " + ", ".join(f'"{word}"' for word in words), parse)


def one_of(options: type[StrEnum]) -> Kind:
    """One word of an enum."""
    word = word_of([str(option) for option in options])
    return Kind(word.label, lambda value: options(word.parse(value)))


def name_of(what: str) -> Kind:
    """A name by the rule of `domain.ids`."""

    def parse(value: Any) -> str:
        return check_name(what, read_text_value(value))

    return Kind("a name: letters, digits, . _ - + and single slashes", parse)


def list_of(kind: Kind, *, label: str, least: int = 0) -> Kind:
    """A list, every element of one kind."""

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


TEXTS = list_of(TEXT, label="a list of texts")
ARGUMENTS = list_of(Kind("text", _argument), label="a list of texts, one per argument")


def names_of(what: str, *, least: int = 0) -> Kind:
    """A list of names without repetition."""
    inner = list_of(name_of(what), label=f"a list of {what} names", least=least)

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
