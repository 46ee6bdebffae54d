"""A fresh core from the header of an event log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from maestroctl.errors import MaestroError
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.node_core import NodeCore
from maestroctl.telemetry.event_codec import Effect
from maestroctl.telemetry.log_header import LogHeader


class Core(Protocol):
    """Either core."""

    def handle(self, event: Any, now_s: float) -> Sequence[Effect]:
        """See `CoordinatorCore.handle` and `NodeCore.handle`."""
        ...


def make_core(header: LogHeader) -> Core:
    """The core as it was before its first event.

    Raises:
        MaestroError: the header does not say how to build it, or names what there is no more.
    """
    if header.unnamed:
        parts = ", ".join(header.unnamed)
        raise MaestroError(f"the core was built with parts that a log cannot hold: {parts}")
    if header.core == "coordinator" and header.fleet is not None:
        return CoordinatorCore(header.fleet, header.epoch, max_queued=header.max_queued)
    if header.core == "node" and header.node is not None:
        return _make_node(header)
    raise MaestroError(f"a log of {header.core!r} has no start values to build a core from")


def _make_node(header: LogHeader) -> NodeCore:
    assert header.node is not None
    try:
        return NodeCore(
            header.node,
            header.policy,
            header.budgets,
            {profile.model: profile for profile in header.profiles},
            {model.name: model for model in header.models},
            header.abilities,
            unavailable=header.unavailable,
        )
    except ValueError as exc:
        raise MaestroError(f"building the core of node {header.name!r}: {exc}") from exc
