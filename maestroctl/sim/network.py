"""How long messages between coordinator and nodes take, and how old snapshots are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """``[network]``; seconds.

    Attributes:
        rtt_s: coordinator to a node and back, unless the node's cluster says another.
        send_soon_s: changes of a node within this time go out as one snapshot.
        snapshot_every_s: a snapshot goes out at least this often; None = on changes only.
        progress_every_s: how often the tokens of running stages are told; None = when they end.
        prediction_s: a stage that finds a free slot is sent on the prior and corrected by its
            prediction this much later, as live; None = predictions are there at once.
    """

    rtt_s: float = 0.001
    send_soon_s: float = 0.005
    snapshot_every_s: float | None = 1.0
    progress_every_s: float | None = None
    prediction_s: float | None = None
