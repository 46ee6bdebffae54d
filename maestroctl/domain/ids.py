"""Typed identifiers, and the one rule for names that users choose."""

from __future__ import annotations

import re
from typing import NewType

ModelName = NewType("ModelName", str)
NodeName = NewType("NodeName", str)
ClusterName = NewType("ClusterName", str)
JobId = NewType("JobId", str)
StageId = NewType("StageId", str)
EngineId = NewType("EngineId", str)
"""``model@node`` or ``model@node#replica``: stable over restarts of the process."""
DeviceName = NewType("DeviceName", str)
"""``cuda:0`` or ``cpu``."""
TimerId = NewType("TimerId", str)

HOST_DEVICE = DeviceName("host")
"""The name under which a node books host memory."""


def make_engine_id(model: ModelName, node: NodeName) -> EngineId:
    """The id of the engine that serves `model` on `node`."""
    return EngineId(f"{model}@{node}")


_NAME = re.compile(r"\w[\w.+-]*(?:/[\w][\w.+-]*)*", re.UNICODE)


def check_name(kind: str, name: str) -> str:
    """Return `name` when it is fit for a path, a header and a table; else raise.

    Letters and digits of any script, ``. _ - +``, and single slashes between parts. No ``..``,
    no spaces, no colons, at most 128 characters.

    Raises:
        ValueError: names the kind of thing and the rule.
    """
    if len(name) > 128 or ".." in name or _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{kind} name {name[:140]!r}: use letters, digits, '.', '_', '-', '+' and single"
            " slashes, at most 128 characters"
        )
    return name
