"""Hypothesis strategies for every event of both cores, all fields filled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.telemetry.event_codec import EVENT_TYPES, Event

NAMES = st.from_regex(r"[a-zé测][a-z0-9._-]{0,6}(/[a-z]{1,3})?", fullmatch=True).filter(
    lambda name: ".." not in name
)
FLOATS = st.floats(allow_nan=False)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.text(max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)
_BASIC: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=12),
    int: st.integers(-(2**62), 2**62),
    float: FLOATS,
    bool: st.booleans(),
    Any: PLAIN,
    type(None): st.none(),
}


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation as it is used in `domain` and `scheduler.events`."""
    if hint in _BASIC:
        return _BASIC[hint]
    if hasattr(hint, "__supertype__"):  # NewType: an identifier
        return NAMES
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of(*(of_type(arg) for arg in args))
    if origin is tuple:
        if args[-1] is Ellipsis:
            return st.lists(of_type(args[0]), max_size=2).map(tuple)
        return st.tuples(*(of_type(arg) for arg in args))
    if origin is Mapping:
        return st.dictionaries(of_type(args[0]), of_type(args[1]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    return instances(hint)


def instances(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Valid instances of a dataclass."""
    hints = get_type_hints(kind)
    fields = {field.name: of_type(hints[field.name]) for field in dataclasses.fields(kind)}
    if "name" in fields:
        fields["name"] = NAMES
    if kind is StageDescriptor:
        fields["candidates"] = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
    if kind is Prediction:
        del fields["output_q50"], fields["output_q90"]
        quantiles = st.lists(st.floats(0, 1e9), min_size=2, max_size=2).map(sorted)
        return st.builds(
            lambda pair, **rest: Prediction(pair[0], pair[1], **rest), quantiles, **fields
        )
    return st.builds(kind, **fields)


def events() -> st.SearchStrategy[Event]:
    """Any event of either core."""
    return st.one_of(*(instances(kind) for kind in EVENT_TYPES.values()))
