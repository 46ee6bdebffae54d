"""What `frontier` compares: model choice, order and what is known, each over its slacks."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

OURS = (0.0, 0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.6, inf)
"""tau in typical services per ten points of confidence."""
NO_ROUTER = OURS
PAPER_FORM = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, inf)
"""tau as a share of the fastest latency; as many settings as ours, since a frontier of more points
is never lower."""
ABLATION = (0.2, 0.3, 0.4, 0.6)
FULL_FORM = (0.0, 1.0, 4.0, 16.0)


class System(NamedTuple):
    """What is compared.

    Attributes:
        group: of the module's list. `slack`: tau, where it means something.
        confidence: ``router``, ``none`` or ``oracle``. `only`: the one model that is used.
    """

    name: str
    group: str
    ordering: str
    choice: str
    slack: float | None = None
    confidence: str = "router"
    true_lengths: bool = False
    only: str | None = None


def systems(models: Sequence[str], *, ablations: bool = True) -> list[System]:
    """Every system of a cell.

    Args:
        ablations: the full form, oracle router and oracle lengths too.
    """
    found = [System("ours", "ours", "stjf", "maestroctl", slack) for slack in OURS]
    found += [System("paper form", "paper form", "stjf", "chimera", slack) for slack in PAPER_FORM]
    found += [
        System("no router", "no router", "stjf", "maestroctl", slack, "none") for slack in NO_ROUTER
    ]
    if ablations:
        found += [
            System("full form", "full form", "stjf", "chimera_full", slack) for slack in FULL_FORM
        ]
        for slack in ABLATION:
            found += [
                System("oracle router", "ablation", "stjf", "maestroctl", slack, "oracle"),
                System("oracle length", "ablation", "stjf", "maestroctl", slack, true_lengths=True),
            ]
    # `ltr` is handed the predicted median as its score: no rank was learned.
    for ordering, name in (
        ("fcfs", "vLLM"),
        ("mlfq", "MLFQ"),
        ("ltr", "rank by length"),
        ("sjf", "SJF"),
    ):
        for choice in ("round_robin", "least_loaded"):
            found.append(System(f"{name}, {choice}", "baseline", ordering, choice))
    for model in models:
        found.append(System(f"{model} alone, FCFS", "baseline", "fcfs", "first", only=model))
        found.append(System(f"{model} alone, STJF", "baseline", "stjf", "first", only=model))
    found.append(
        System("vLLM (STJF), round_robin", "reference", "oracle_stjf", "round_robin",
               true_lengths=True)
    )  # fmt: skip
    return found
