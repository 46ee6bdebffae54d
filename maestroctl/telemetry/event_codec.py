"""Events of a core as JSON, and back to exactly the same values.

One event is one array, ``[now_s, "EventType", {fields}]``. JSON has no infinity, so a line that
holds a float that is not finite writes it as a string, and is read back leniently; every other
line is read strictly.

This is the one module of `telemetry` that knows `scheduler.events`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar, get_args

import msgspec

from maestroctl.scheduler.events import CoordinatorEvent, NodeEvent

Event = CoordinatorEvent | NodeEvent

EVENT_TYPES: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (*get_args(CoordinatorEvent), *get_args(NodeEvent))
}
"""Name in a log -> class."""

_T = TypeVar("_T")

_NON_FINITE = (
    b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",  # inf
    b"\xcb\xff\xf0\x00\x00\x00\x00\x00\x00",  # -inf
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # nan
)
"""How MessagePack writes them: a way to find them without walking the value in Python."""

_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()
_frame = msgspec.json.Decoder(tuple[float, str, msgspec.Raw])
_decoders = {name: msgspec.json.Decoder(kind) for name, kind in EVENT_TYPES.items()}


def encode_event(event: Event, now_s: float) -> bytes:
    """One line without its newline.

    Args:
        event: of either core.
        now_s: finite; the time that was handed to ``handle``.
    """
    return encode_value((now_s, type(event).__name__, event))


def decode_event(line: bytes) -> tuple[float, Event]:
    """Time and event of a line.

    Raises:
        ValueError: not such a line, or an event that this version does not know.
    """
    now_s, name, raw = _frame.decode(line)
    decoder = _decoders.get(name)
    if decoder is None:
        raise ValueError(f"unknown event {name!r}")
    try:
        return now_s, decoder.decode(raw)
    except msgspec.ValidationError:
        return now_s, msgspec.json.decode(raw, type=EVENT_TYPES[name], strict=False)


def encode_value(value: Any) -> bytes:
    """JSON of plain values and dataclasses; floats that are not finite become strings."""
    text = _json.encode(value)
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
    """Plain values with ``inf``, ``-inf`` and ``nan`` as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _spelled_out(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [_spelled_out(item) for item in value]
    if isinstance(value, dict):
        return {key: _spelled_out(item) for key, item in value.items()}
    return value
