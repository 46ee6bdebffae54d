"""What `frontier` compares: model choice, order and what is known, each over its slacks."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

SLACKS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, inf)
"""tau of the paper's form; ours takes a tenth of each."""
ABLATION_SLACKS = (0.0, 1.0, 4.0, 16.0)


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


def systems(models: Sequence[str]) -> list[System]:
    """Every system of a cell."""
    found = []
    for slack in SLACKS:
        own = slack / 10
        found += [
            System("ours", "ours", "stjf", "maestroctl", own),
            System("paper form", "paper form", "stjf", "chimera", slack),
            System("no router", "no router", "stjf", "maestroctl", own, "none"),
        ]
    for slack in ABLATION_SLACKS:
        own = slack / 10
        found += [
            System("full form", "full form", "stjf", "chimera_full", slack),
            System("oracle router", "ablation", "stjf", "maestroctl", own, "oracle"),
            System("oracle length", "ablation", "stjf", "maestroctl", own, true_lengths=True),
        ]
    for ordering, name in (("fcfs", "vLLM"), ("mlfq", "MLFQ"), ("ltr", "LTR"), ("sjf", "SJF")):
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
