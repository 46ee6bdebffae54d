"""The memory ledger of a node (Maestro Eq 4), per device and for the host.

``M_kv + M_res <= M_total``: every engine has one entry, bytes per device (``host`` included).
Covers who holds how much and whether more would fit. Does not cover what an engine *should* hold
in a status (`footprint`), nor sequence bookings inside an engine's KV limit (`admission`).

Two ways in:

* `book`: a decision of ours takes memory. It never takes a device above its budget; trying to is
  a bug and raises before anything is changed.
* `follow`: reality was read. A reading or a lowered budget may leave booked > budget; that is an
  *overrun*, which stops admissions and makes room, and never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping

from maestroctl.domain.ids import DeviceName, EngineId
from maestroctl.errors import InvariantViolation


class MemoryBooks:
    """Budgets and bookings. Owned by `NodeState`.

    Args:
        budgets: M_total per device, bytes, ``host`` included.
    """

    def __init__(self, budgets: Mapping[DeviceName, int]) -> None:
        self.budgets: dict[DeviceName, int] = dict(budgets)
        self.booked: dict[DeviceName, int] = dict.fromkeys(budgets, 0)
        # Invariant: booked[d] = sum of entries[e][d]; zero bookings are not kept.
        self.entries: dict[EngineId, dict[DeviceName, int]] = {}
        # Devices with booked > budget and by how much; kept current because every offer asks.
        self.overrun: dict[DeviceName, int] = {}

    def holding(self, engine_id: EngineId) -> dict[DeviceName, int]:
        """What the engine has booked; not to be changed by the caller."""
        return self.entries.get(engine_id, {})

    def free_bytes(self, device: DeviceName) -> int:
        """R_head: budget minus booked; negative in an overrun."""
        return self.budgets[device] - self.booked[device]

    def fits(self, engine_id: EngineId, wanted: Mapping[DeviceName, int]) -> bool:
        """Would `wanted`, in place of what the engine has booked, respect every budget?

        A device on which the engine takes no more than before is never in the way.
        """
        held = self.holding(engine_id)
        for device, num_bytes in wanted.items():
            more = num_bytes - held.get(device, 0)
            if more > 0 and more > self.budgets[device] - self.booked[device]:
                return False
        return True

    def book(self, engine_id: EngineId, wanted: Mapping[DeviceName, int]) -> None:
        """Replace the engine's entry by `wanted`.

        Raises:
            InvariantViolation: it would take a device above its budget; nothing is changed.
        """
        if not self.fits(engine_id, wanted):
            raise InvariantViolation(
                f"booking {dict(wanted)} for {engine_id} breaks Eq 4: booked {self.booked},"
                f" of it by the engine {self.holding(engine_id)}, budgets {self.budgets}"
            )
        self._replace(engine_id, wanted)

    def follow(self, engine_id: EngineId, wanted: Mapping[DeviceName, int]) -> None:
        """Replace the engine's entry by what was read, whatever the budget says."""
        self._replace(engine_id, wanted)

    def release(self, engine_id: EngineId) -> None:
        """The engine holds nothing any more."""
        self._replace(engine_id, {})

    def set_budget(self, device: DeviceName, budget_bytes: int) -> bool:
        """Say what models may use on `device` now; True when it changed."""
        if self.budgets[device] == budget_bytes:
            return False
        self.budgets[device] = budget_bytes
        self._note_overrun(device)
        return True

    def _replace(self, engine_id: EngineId, wanted: Mapping[DeviceName, int]) -> None:
        held = self.entries.pop(engine_id, {})
        for device, num_bytes in held.items():
            self.booked[device] -= num_bytes
        entry = {device: num_bytes for device, num_bytes in wanted.items() if num_bytes > 0}
        for device, num_bytes in entry.items():
            self.booked[device] += num_bytes
        if entry:
            self.entries[engine_id] = entry
        for device in (*held, *entry):
            self._note_overrun(device)

    def _note_overrun(self, device: DeviceName) -> None:
        excess = self.booked[device] - self.budgets[device]
        if excess > 0:
            self.overrun[device] = excess
        else:
            self.overrun.pop(device, None)

    def validate(self) -> None:
        """Check the sums.

        Raises:
            InvariantViolation: a table contradicts another.
        """
        for device, booked in self.booked.items():
            total = sum(entry.get(device, 0) for entry in self.entries.values())
            if booked != total or booked < 0:
                raise InvariantViolation(f"{device}: booked {booked}, entries sum to {total}")
            if self.overrun.get(device, 0) != max(0, booked - self.budgets[device]):
                raise InvariantViolation(f"{device}: overrun {self.overrun} is not current")
