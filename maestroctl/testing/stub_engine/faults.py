"""Failure switches: set on the command line, changed while the process runs.

A test often wants a healthy start and a failure later, so every switch that does not concern the
start itself can be set by ``POST /stub/faults`` with a JSON object of the fields below.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from maestroctl.testing.stub_engine.options import StubOptions


@dataclass(slots=True)
class Faults:
    """Current switches. Owner: the engine; 0, False and None mean off. Times in seconds."""

    token_interval_s: float
    wake_delay_s: float
    exit_at_token: int
    cut_stream_at: int
    stall_at_token: int
    fail_before_first_byte: int  # requests still to fail; negative = all of them
    lie_about_sleep: bool
    fail_wake: str | None  # "once" | "always" | None
    return_memory_late_s: float
    plain_errors: bool

    @classmethod
    def from_options(cls, options: StubOptions) -> Faults:
        """The switches as the command line set them."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})

    def update(self, values: dict[str, Any]) -> None:
        """Set some switches.

        Raises:
            ValueError: a name that is no switch; nothing is changed then.
        """
        known = {field.name for field in fields(self)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"no such switch: {', '.join(unknown)}; known: {sorted(known)}")
        for name, value in values.items():
            setattr(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """All switches by name."""
        return asdict(self)

    def take_first_byte_failure(self) -> bool:
        """Whether this request must fail; counts it."""
        if self.fail_before_first_byte > 0:
            self.fail_before_first_byte -= 1
            return True
        return self.fail_before_first_byte < 0

    def take_wake_failure(self) -> bool:
        """Whether this wake must fail; ``once`` is used up by it."""
        failing = self.fail_wake is not None
        if self.fail_wake == "once":
            self.fail_wake = None
        return failing

    def tokens_until_fault(self, produced: int) -> int | None:
        """Tokens a sequence may still produce before a switch acts; None = no limit.

        ``exit_at_token`` acts instead of that token, the two others after it.
        """
        limits = [limit for limit in (self.cut_stream_at, self.stall_at_token) if limit]
        if self.exit_at_token:
            limits.append(self.exit_at_token - 1)
        return max(0, min(limits) - produced) if limits else None

    def due(self, produced: int) -> str | None:
        """The switch that acts on a sequence with so many tokens: exit, cut, stall or None."""
        if self.exit_at_token and produced >= self.exit_at_token - 1:
            return "exit"
        if self.cut_stream_at and produced >= self.cut_stream_at:
            return "cut"
        if self.stall_at_token and produced >= self.stall_at_token:
            return "stall"
        return None
