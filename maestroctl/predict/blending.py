"""What the experts say of one candidate, averaged by how well each did. Standard library only.

An expert is a learned model (``model``, ``local``), the profile of running quantiles, or an online
regression: ``near`` is the one of the exact group, ``wide`` the one of the whole role, which knows
of models the exact group has not met. All figures here are logs of 1 + tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from maestroctl.predict.calibrated import Asked
from maestroctl.predict.online_regression import LengthTraits, OnlineRegression
from maestroctl.predict.raw_prediction import CandidateFigures, of_local
from maestroctl.predict.running_figures import COVERAGE, Expert, Group
from maestroctl.predict.running_window import RunningWindow

MIN_EVIDENCE = 3
OWN_EXPERTS = ("profile", "near", "wide")
"""Experts that are no model but part of the online state."""
_PRIOR_LOG = math.log1p(128.0)

_NOTHING = Group()
"""Of a group that is not there; never written to."""

Path = Sequence[Group | None]
"""Groups of a key from the most specific to the widest; None = nothing was seen yet."""


@dataclass(frozen=True, slots=True)
class LengthBlend:
    """Median and 0.9 quantile before the conformal shift; None = nobody knows anything."""

    q50: float | None
    q90: float | None
    asked: Asked


@dataclass(frozen=True, slots=True)
class _Opinion:
    """What one expert says, its own bias corrected.

    Attributes:
        record: how it did; None = not known yet, which counts as well as the best one that is.
    """

    record: Expert | None
    median: float
    high: float = 0.0


def blend_length(
    path: Path, experts: Mapping[str, CandidateFigures], traits: LengthTraits
) -> LengthBlend:
    """Blend what is said of a stage's length."""
    said = {name: math.log1p(max(0.0, f.q50)) for name, f in experts.items()}
    usual = _quantile([group.lengths if group else None for group in path], 0.5)
    anchor = _first(usual, said.get("model"), _PRIOR_LOG)
    asked = Asked(anchor, traits.row(anchor, anchor, (said.get("model"), of_local(said))))
    exact, role = path[0] or _NOTHING, path[1] or _NOTHING
    records = (exact.experts, role.experts)
    opinions = []
    for name, figures in experts.items():
        record = _record(name, *records)
        high = math.log1p(max(figures.q50, figures.q90))
        opinions.append(_Opinion(record, max(0.0, said[name] + _correction(record)), high))
    for name, fit in fits_of(exact, role):
        if record := _record(name, *records):
            median = max(0.0, anchor + fit.predict(asked.row) + _correction(record))
            opinions.append(_Opinion(record, median, median + fit.spread))
    windows = [group.lengths if group else None for group in (path[:1] if experts else path)]
    if (middle := _quantile(windows, 0.5)) is not None:
        high = _quantile(windows, COVERAGE) or middle
        opinions.append(_Opinion(_record("profile", *records), middle, high))
    q50, q90 = _mean(opinions)
    return LengthBlend(q50, None if q50 is None or q90 is None else max(q50, q90), asked)


def blend_total(
    own: Group | None,
    path: Path,
    experts: Mapping[str, CandidateFigures],
    traits: LengthTraits,
    usual_length: float,
) -> tuple[float | None, Asked]:
    """Blend what is said of the job's remaining tokens.

    Args:
        own: group of the exact key at this position.
        usual_length: what the lengths in `traits` are compared with.
    """
    said = {name: math.log1p(max(0.0, f.total)) for name, f in experts.items()}
    seen = next((g for g in (own, *path) if g and len(g.totals) >= MIN_EVIDENCE), None)
    usual = seen.totals.quantile(0.5) if seen else None
    anchor = _first(usual, said.get("model"), _PRIOR_LOG)
    row = traits.row(anchor, usual_length, (said.get("model"), of_local(said)))
    role = path[1] or _NOTHING
    records = ((own or _NOTHING).total_experts, role.total_experts)
    opinions = []
    for name, value in said.items():
        record = _record(name, *records)
        opinions.append(_Opinion(record, value + _correction(record)))
    fit, record = role.total_fit, _record("wide", *records)
    if fit and record:
        opinions.append(_Opinion(record, anchor + fit.predict(row) + _correction(record)))
    if seen and usual is not None:
        opinions.append(_Opinion(seen.total_experts.get("profile"), usual))
    return _mean(opinions)[0], Asked(anchor, row)


def _record(name: str, *groups: Mapping[str, Expert]) -> Expert | None:
    """An expert's record in the narrowest group that has enough of one."""
    for experts in groups:
        record = experts.get(name)
        if record is not None and record.count >= MIN_EVIDENCE:
            return record
    return None


def _quantile(windows: Sequence[RunningWindow | None], level: float) -> float | None:
    """Of the first window with enough in it."""
    for window in windows:
        if window is not None and len(window) >= MIN_EVIDENCE:
            return window.quantile(level)
    return None


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _correction(record: Expert | None) -> float:
    return record.correction() if record else 0.0


def _mean(opinions: Sequence[_Opinion]) -> tuple[float | None, float | None]:
    if not opinions:
        return None, None
    known = [opinion.record.trust() for opinion in opinions if opinion.record]
    best = max(known, default=1.0)
    trusts = [opinion.record.trust() if opinion.record else best for opinion in opinions]
    weight = sum(trusts)
    return (
        sum(t * opinion.median for t, opinion in zip(trusts, opinions, strict=True)) / weight,
        sum(t * opinion.high for t, opinion in zip(trusts, opinions, strict=True)) / weight,
    )


def fits_of(exact: Group, role: Group) -> Iterator[tuple[str, OnlineRegression]]:
    """The regressions that have a say on a stage's length, by expert name."""
    for name, fit in (("near", exact.length_fit), ("wide", role.length_fit)):
        if fit is not None:
            yield name, fit
