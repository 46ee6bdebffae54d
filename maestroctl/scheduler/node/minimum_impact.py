"""Minimum-impact degradation: who gives way so that it hurts least (Maestro Algorithm 2).

Theory of operation. Every engine offers a chain of choices, of which a plan takes at most one. A
plan is judged lexicographically: the highest rung it uses, its total cost in seconds, its number
of items. A *rung* is (level, harm): within a level, batch goes before interactive and a request
that has not sent a byte before a stream that has (`GiveWayChoice.harm`). Deficit and supply are
vectors over the devices and the host; a sleep may *take* host memory, which must be free or be
freed by the rest of the plan.

1. The rungs are tried from the mildest on; the first at which the deficit can be met is the
   lowest possible.
2. On it, a greedy plan: choices by cost per byte that is missing, then items the plan can do
   without are dropped, dearest first.
3. With at most `EXACT_ENGINES` engines, branch and bound from that plan: depth first over the
   engines, bounded below by the cheapest cost per byte still to be had on any device, and above
   by the best plan so far. Engines that offer the same are interchangeable, so only one order of
   them is tried. Beyond, the greedy plan stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import HOST_DEVICE
from maestroctl.scheduler.node.degradation import (
    LEVEL_SUSPEND,
    DegradationPlan,
    DegradationPolicy,
    DegradationStep,
    Item,
    Need,
    usable_choices,
)
from maestroctl.scheduler.node.lru_degradation import LruDegradation
from maestroctl.scheduler.node.residency import GiveWayAction, GiveWayChoice, VictimView

EXACT_ENGINES = 16
Rung = tuple[int, int]


class MinimumImpact(DegradationPolicy):
    """Algorithm 2.

    Args:
        kills_starts: level 3 also kills starts that nobody is served by yet (`maestroctl`);
            without it level 3 only stops engines on their way to sleep (`maestro`).
    """

    def __init__(self, *, kills_starts: bool = True) -> None:
        self._kills_starts = kills_starts
        self._fallback = LruDegradation()

    def offered(
        self, view: VictimView, *, may_drain: bool, max_level: int
    ) -> Sequence[GiveWayChoice]:
        """See `usable_choices`; level 3 as the form of the algorithm has it."""
        choices = usable_choices(view, may_drain=may_drain, max_level=max_level)
        if self._kills_starts:
            # Its context would come back by a stop once it sleeps as well: no hurry before the end.
            hurried = max_level >= LEVEL_SUSPEND or view.status is not EngineStatus.FALLING_ASLEEP
            return choices if hurried else ()
        return [c for c in choices if c.action is not GiveWayAction.KILL_START]

    def choose(self, need: Need, items: Sequence[Item]) -> DegradationPlan | None:
        """See `DegradationPolicy`."""
        for rung in _promising_rungs(need, items):
            allowed = _up_to(items, rung, need)
            if not _could_meet(need, allowed):
                continue
            best = plan_greedily(need, allowed)
            if len(allowed) <= EXACT_ENGINES:
                best = _Search(need, allowed, best).run()
            if best is not None:
                return best
        # As much as idle and sleeping engines give, mildest first.
        return self._fallback.choose(need, items) if need.partial else None


def _promising_rungs(need: Need, items: Sequence[Item]) -> list[Rung]:
    """Rungs from the mildest on at which all engines together could free the deficit.

    One look at every choice; a rung that is left out has no plan.
    """
    gains: dict[Rung, list[int]] = {}
    for _, choices in items:
        most = [0] * len(need.devices)
        for choice in choices:
            gain = gains.setdefault((choice.level, choice.harm), [0] * len(most))
            for d, device in enumerate(need.devices):
                more = choice.freed_bytes.get(device, 0) - most[d]
                if more > 0:
                    gain[d] += more
                    most[d] += more
    supply = [0] * len(need.devices)
    promising = []
    for rung in sorted(gains):
        supply = [have + more for have, more in zip(supply, gains[rung], strict=True)]
        if all(have >= missing for have, missing in zip(supply, need.missing, strict=True)):
            promising.append(rung)
    return promising


def _up_to(items: Sequence[Item], rung: Rung, need: Need) -> list[Item]:
    """What may be asked for without going beyond `rung`, as far as it is of any use."""
    allowed: list[Item] = []
    for view, choices in items:
        useful = [c for c in choices if (c.level, c.harm) <= rung and _is_useful(need, c)]
        if len(useful) > 1:
            useful = [c for c in useful if not any(_dominates(o, c) for o in useful if o is not c)]
        if useful:
            allowed.append((view, useful))
    return allowed


def _is_useful(need: Need, choice: GiveWayChoice) -> bool:
    """It frees something that is missing, or host memory that another one could take."""
    freed = choice.freed_bytes
    return any(freed.get(device, 0) > 0 for device in (*need.devices, HOST_DEVICE))


def _dominates(one: GiveWayChoice, other: GiveWayChoice) -> bool:
    """`one` costs no more and frees no less anywhere, and is better in something."""
    if one.cost_s > other.cost_s:
        return False
    better = one.cost_s < other.cost_s
    for device in (*one.freed_bytes, *other.freed_bytes):
        gain = one.freed_bytes.get(device, 0) - other.freed_bytes.get(device, 0)
        if gain < 0:
            return False
        better = better or gain > 0
    return better


def _could_meet(need: Need, items: Sequence[Item]) -> bool:
    """Would it do if everybody freed what it can? Necessary, not sufficient."""
    return all(
        sum(max(c.freed_bytes.get(device, 0) for c in choices) for _, choices in items) >= missing
        for device, missing in zip(need.devices, need.missing, strict=True)
    )


def plan_greedily(need: Need, items: Sequence[Item]) -> DegradationPlan | None:
    """Choices by cost per missing byte, then the redundant dropped; or the cheapest single one."""
    offers = sorted(
        (
            (_price(choice, need), rank, choice)
            for rank, (_, cs) in enumerate(items)
            for choice in cs
        ),
        key=lambda offer: (offer[0], offer[1], offer[2].level),
    )
    chosen: dict[int, GiveWayChoice] = {}
    freed = dict.fromkeys((*need.devices, HOST_DEVICE), 0)
    for _, rank, choice in offers:
        before = chosen.get(rank)
        gains = {
            device: choice.freed_bytes.get(device, 0)
            - (before.freed_bytes.get(device, 0) if before else 0)
            for device in freed
        }
        helps = any(
            freed[device] < missing and gains[device] > 0
            for device, missing in zip(need.devices, need.missing, strict=True)
        )
        host_after = need.host_free + freed[HOST_DEVICE] + gains[HOST_DEVICE]
        if not helps or (gains[HOST_DEVICE] < 0 and host_after < 0):
            continue
        chosen[rank] = choice
        for device in freed:
            freed[device] += gains[device]
        if all(freed[d] >= m for d, m in zip(need.devices, need.missing, strict=True)):
            break
    found = []
    if need.is_met(list(chosen.values())):
        found.append(_drop_redundant(need, chosen))
    alone = [(c.cost_s, rank, c) for _, rank, c in offers if need.is_met([c])]
    if alone:
        _, rank, choice = min(alone, key=lambda one: one[:2])
        found.append({rank: choice})
    plans = [_make_plan(items, picks) for picks in found]
    return min(plans, key=lambda plan: plan.impact, default=None)


def _price(choice: GiveWayChoice, need: Need) -> float:
    """Seconds per byte of the deficit."""
    useful = sum(
        min(missing, max(0, choice.freed_bytes.get(device, 0)))
        for device, missing in zip(need.devices, need.missing, strict=True)
    )
    return choice.cost_s / useful if useful else float("inf")


def _drop_redundant(need: Need, chosen: Mapping[int, GiveWayChoice]) -> dict[int, GiveWayChoice]:
    kept = dict(chosen)
    for rank, choice in sorted(chosen.items(), key=lambda pick: (-pick[1].cost_s, -pick[0])):
        del kept[rank]
        if not need.is_met(list(kept.values())):
            kept[rank] = choice
    return kept


def _make_plan(items: Sequence[Item], picks: Mapping[int, GiveWayChoice]) -> DegradationPlan:
    """Those that free host memory first: a sleep may need it."""
    steps = [DegradationStep(items[rank][0].engine_id, picks[rank]) for rank in sorted(picks)]
    steps.sort(key=lambda step: step.choice.freed_bytes.get(HOST_DEVICE, 0) < 0)
    return DegradationPlan(tuple(steps))


class _Search:
    """Branch and bound over one rung. Lives for one plan.

    Attributes:
        _most: per depth and device, the most that engines from there on can free.
        _rate: per depth and device, their least cost per byte.
    """

    def __init__(self, need: Need, items: Sequence[Item], best: DegradationPlan | None) -> None:
        self._need = need
        order = sorted(
            range(len(items)),
            key=lambda i: (min(_price(c, need) for c in items[i][1]), _signature(items[i][1]), i),
        )
        self._items = [items[i] for i in order]
        self._original = items
        self._order = order
        devices = need.devices
        self._rows = [
            [
                (
                    tuple(c.freed_bytes.get(d, 0) for d in devices),
                    c.freed_bytes.get(HOST_DEVICE, 0),
                    c.cost_s,
                )
                for c in choices
            ]
            for _, choices in self._items
        ]
        self._same = [False] + [
            _signature(a[1]) == _signature(b[1])
            for a, b in zip(self._items, self._items[1:], strict=False)
        ]
        self._bound()
        self._best = best
        self._limit = (best.cost_s, len(best.steps)) if best is not None else (float("inf"), 0)
        self._picks = [-1] * len(items)
        self._found: list[int] | None = None

    def _bound(self) -> None:
        """Suffix figures for the bounds."""
        width, depth = len(self._need.devices), len(self._items)
        self._most = [[0] * width for _ in range(depth + 1)]
        self._rate = [[float("inf")] * width for _ in range(depth + 1)]
        self._host = [0] * (depth + 1)
        for i in range(depth - 1, -1, -1):
            rows = self._rows[i]
            self._host[i] = self._host[i + 1] + max(0, *(host for _, host, _ in rows))
            for d in range(width):
                self._most[i][d] = self._most[i + 1][d] + max(0, *(f[d] for f, _, _ in rows))
                rates = [cost / f[d] for f, _, cost in rows if f[d] > 0]
                self._rate[i][d] = min([self._rate[i + 1][d], *rates])

    def run(self) -> DegradationPlan | None:
        """The best plan of the rung, or None."""
        self._visit(0, self._need.missing, self._need.host_free, False, 0.0, 0)
        if self._found is None:
            return self._best
        picks = {
            self._order[i]: self._items[i][1][choice]
            for i, choice in enumerate(self._found)
            if choice >= 0
        }
        return _make_plan(self._original, picks)

    def _visit(
        self, i: int, left: Sequence[int], host: int, takes: bool, cost: float, num: int
    ) -> None:
        missing = False
        least = 0.0
        for d, short in enumerate(left):
            if short > 0:
                missing = True
                if short > self._most[i][d]:
                    return
                least = max(least, short * self._rate[i][d])
        if (cost + least * (1 - 1e-12), num + missing) >= self._limit:
            return
        if takes and host + self._host[i] < 0:
            return
        if not missing and not (takes and host < 0):
            self._limit = (cost, num)
            self._found = self._picks[:]
            return
        if i == len(self._items):
            return
        last = self._picks[i - 1] if self._same[i] else len(self._rows[i])
        for choice, (freed, on_host, seconds) in enumerate(self._rows[i]):
            if choice > last:
                break  # interchangeable with its neighbour: only one order of the two
            self._picks[i] = choice
            rest = [short - one for short, one in zip(left, freed, strict=True)]
            self._visit(i + 1, rest, host + on_host, takes or on_host < 0, cost + seconds, num + 1)
        self._picks[i] = -1
        self._visit(i + 1, left, host, takes, cost, num)


def _signature(choices: Sequence[GiveWayChoice]) -> tuple[object, ...]:
    return tuple((c.cost_s, tuple(sorted(c.freed_bytes.items()))) for c in choices)
