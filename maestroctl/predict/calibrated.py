"""What goes into and comes out of online learning, as plain values. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """What the regressions were asked with, in logs; they learn from it when the answer is known.

    Attributes:
        anchor: usual value of what is predicted.
        row: of `LengthTraits.row`.
    """

    anchor: float
    row: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Final figures of one candidate, in tokens; 0 <= q50 <= q90 <= total's scale.

    Attributes:
        base_q90: before the conformal shift.
        position: stages of the job that came before.
        is_total_known: something is known of how long such jobs are; else `total` is `q50`.
    """

    q50: float
    q90: float
    total: float
    source: str
    base_q90: float
    position: int
    asked_length: Asked
    asked_total: Asked
    is_total_known: bool = True


@dataclass(frozen=True, slots=True)
class Observation:
    """What came out of a stage.

    Attributes:
        output_tokens: seen so far when `censored`, else the final length.
        censored: the stage was aborted or cancelled: the length is a lower bound.
        remaining_tokens: this and all later stages; None until the job ended.
        miss_counted: `count_miss` was called for it while it ran.
    """

    output_tokens: int
    censored: bool = False
    remaining_tokens: int | None = None
    miss_counted: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """Output lengths of one group, tokens.

    Attributes:
        group: ``step``, ``role`` (of a workflow), ``model`` or ``fleet``.
        stages: ever observed; the quantiles are of the newest.
    """

    group: str
    stages: int
    q50: float
    q90: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The state at a glance.

    Attributes:
        cells: groups with figures of their own.
        coverage_q90: share of recent stages that stayed within their 0.9 quantile; aim 0.9.
        bias: mean log error of the learned model before correction; above 0 = too short.
    """

    cells: int
    observations: int
    coverage_q90: float | None
    bias: float | None
