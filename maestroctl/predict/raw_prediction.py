"""What the learned models say before any calibration: plain values, small enough for a socket."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")

LOCAL = "local"
"""Expert fitted on this fleet's own history; ``local-DIGEST`` when it comes from an artifact."""

_MOST_TOKENS = 1e7
"""More than any context holds: a length past it is no prediction."""


@dataclass(frozen=True, slots=True)
class CandidateFigures:
    """One candidate model, in tokens.

    Attributes:
        q50, q90: output of the stage.
        total: output of this and all later stages of the job.
    """

    q50: float
    q90: float
    total: float


@dataclass(frozen=True, slots=True)
class RawPrediction:
    """One expert's figures for one stage.

    Attributes:
        p_tool: calibrated probability of a tool call.
        figures: by candidate model.
        confidence: by candidate model; models the router does not know are left out.
    """

    p_tool: float
    figures: Mapping[str, CandidateFigures]
    confidence: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "p_tool": self.p_tool,
            "figures": {m: [f.q50, f.q90, f.total] for m, f in self.figures.items()},
            "confidence": dict(self.confidence),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RawPrediction:
        """The inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: no such thing, or absurd figures.
        """
        figures = {str(m): CandidateFigures(*map(_tokens, f)) for m, f in raw["figures"].items()}
        confidence = {str(m): _share(q) for m, q in raw["confidence"].items()}
        return cls(_share(raw["p_tool"]), figures, confidence)


def local_expert(digest: str) -> str:
    """Name of the expert in a refitted artifact: what is learned of one is not of the next."""
    return f"{LOCAL}-{digest[:12]}"


def of_local(said: Mapping[str, _T]) -> _T | None:
    """What the refitted expert said, if there is one."""
    return next((raw for name, raw in said.items() if name.startswith(LOCAL)), None)


def _tokens(raw: Any) -> float:
    value = float(raw)
    if not value <= _MOST_TOKENS:
        raise ValueError(f"not a number of tokens: {value}")
    return max(0.0, value)


def _share(raw: Any) -> float:
    value = float(raw)
    if not math.isfinite(value):
        raise ValueError(f"not a probability: {value}")
    return min(1.0, max(0.0, value))
