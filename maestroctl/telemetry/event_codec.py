"""What a core was told and what it asked for, as JSON, and back to exactly the same values.

One event is one array, ``[now_s, "EventType", {fields}, effects]``, where the effects are a list of
``["EffectType", {fields}]``, or the text of the error with which the core refused the event. JSON
has no infinity, so a line that holds a float that is not finite writes it as a string, and is read
back leniently; every other line is read strictly. Half a surrogate pair, which no JSON can hold,
becomes the replacement character.

This is the one module of `telemetry` that knows `scheduler.events` and `scheduler.effects`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import msgspec

from maestroctl.scheduler.effects import CoordinatorEffect, NodeEffect
from maestroctl.scheduler.events import CoordinatorEvent, NodeEvent

Event = CoordinatorEvent | NodeEvent
Effect = CoordinatorEffect | NodeEffect

EVENT_TYPES: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (*get_args(CoordinatorEvent), *get_args(NodeEvent))
}
"""Name in a log -> class."""
EFFECT_TYPES: dict[str, type[Effect]] = {
    kind.__name__: kind for kind in (*get_args(CoordinatorEffect), *get_args(NodeEffect))
}
"""Name in a log -> class."""

_T = TypeVar("_T")

_NON_FINITE = (
    b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",  # inf
    b"\xcb\xff\xf0\x00\x00\x00\x00\x00\x00",  # -inf
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # nan
)
"""How MessagePack writes them: a way to find them without walking the value in Python."""

_json = msgspec.json.Encoder(enc_hook=dict)
"""`dict` for the read-only mappings that frozen records may hold."""
_msgpack = msgspec.msgpack.Encoder(enc_hook=dict)
_Named = tuple[str, msgspec.Raw]
_frame = msgspec.json.Decoder(tuple[float, str, msgspec.Raw, list[_Named] | str])
_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in {**EVENT_TYPES, **EFFECT_TYPES}.items()
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of a core with what came of it.

    Attributes:
        now_s: the time that was handed to ``handle``.
        effects: in order; empty when there was an error.
        error: of a core that refused the event; empty otherwise.
    """

    now_s: float
    event: Event
    effects: tuple[Effect, ...] = ()
    error: str = ""


def encode_entry(
    event: Event, now_s: float, effects: Sequence[Effect] = (), error: str = ""
) -> bytes:
    """One line without its newline.

    Args:
        event: of either core.
        now_s: finite; the time that was handed to ``handle``.
        effects: what ``handle`` gave back.
        error: what it raised instead.
    """
    came: Any = error or [(type(effect).__name__, effect) for effect in effects]
    return encode_value((now_s, type(event).__name__, event, came))


def decode_entry(line: bytes) -> Entry:
    """The entry of a line.

    Raises:
        ValueError: not such a line, or an event or effect that this version does not know.
    """
    now_s, name, raw, came = _frame.decode(line)
    if name not in EVENT_TYPES:
        raise ValueError(f"unknown event {name!r}")
    event = _decode(name, raw, EVENT_TYPES[name])
    if isinstance(came, str):
        return Entry(now_s, event, error=came)
    return Entry(now_s, event, tuple(_decode_effect(kind, text) for kind, text in came))


def _decode_effect(name: str, raw: msgspec.Raw) -> Effect:
    if name not in EFFECT_TYPES:
        raise ValueError(f"unknown effect {name!r}")
    effect: Effect = _decode(name, raw, EFFECT_TYPES[name])
    return effect


def _decode(name: str, raw: msgspec.Raw, kind: type[Any]) -> Any:
    try:
        return _decoders[name].decode(raw)
    except msgspec.ValidationError:
        return msgspec.json.decode(raw, type=kind, strict=False)


def encode_value(value: Any) -> bytes:
    """JSON of plain values and dataclasses; floats that are not finite become strings."""
    try:
        text = _json.encode(value)
    except UnicodeEncodeError:
        return _json.encode(_spelled_out(value))
    # JSON writes them as null, so a text without null has none, which is the common case.
    if b"null" in text:
        packed = _msgpack.encode(value)
        if any(pattern in packed for pattern in _NON_FINITE):
            return _json.encode(_spelled_out(value))
    return text


def decode_value(text: bytes, kind: type[_T]) -> _T:
    """What `encode_value` wrote.

    Raises:
        ValueError: not JSON, or not such a value.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError:
        return msgspec.json.decode(text, type=kind, strict=False)


def _spelled_out(value: Any) -> Any:
    """Plain values: ``inf``, ``-inf`` and ``nan`` as text, text without half surrogate pairs."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _spelled_out(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_spelled_out(item) for item in value]
    if isinstance(value, Mapping):
        return {_spelled_out(key): _spelled_out(item) for key, item in value.items()}
    return value
