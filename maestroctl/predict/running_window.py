"""The newest values of a stream, with exact quantiles: small, durable, quick to follow a drift."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterable


class RunningWindow:
    """The last `size` values.

    Args:
        values: oldest first.
        size: values kept; older ones are dropped.
        count: values ever seen.
    """

    __slots__ = ("_order", "_sorted", "count", "size")

    def __init__(self, values: Iterable[float] = (), *, size: int = 200, count: int = 0) -> None:
        self.size = size
        self.count = 0
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        for value in values:
            self.add(value)
        self.count = max(count, self.count)

    def __len__(self) -> int:
        return len(self._order)

    def add(self, value: float) -> None:
        """Take in a value; O(size)."""
        self.count += 1
        self._order.append(value)
        bisect.insort(self._sorted, value)
        if len(self._order) > self.size:
            oldest = self._order.popleft()
            del self._sorted[bisect.bisect_left(self._sorted, oldest)]

    def quantile(self, level: float) -> float:
        """The smallest kept value that at least `level` of the kept values do not exceed.

        Raises:
            IndexError: nothing was seen yet.
        """
        place = int(-(-level * len(self._sorted) // 1)) - 1
        return self._sorted[max(0, min(place, len(self._sorted) - 1))]

    def values_above(self, floor: float) -> list[float]:
        """Kept values larger than `floor`, rising."""
        return self._sorted[bisect.bisect_right(self._sorted, floor) :]

    def values(self) -> list[float]:
        """Kept values, oldest first."""
        return list(self._order)
