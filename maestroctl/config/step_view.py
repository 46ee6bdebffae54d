"""What templates and `until` expressions see of a step that has run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

STEP_FIELDS = ("output", "lines", "json", "items")
"""Everything that may follow ``steps.NAME.``"""

_FENCE = re.compile(r"\A\s*```[\w-]*\n(.*?)\n?```\s*\Z", re.DOTALL)


class StepView:
    """Outputs of the newest visit of one step.

    Args:
        name: of the step, for messages.
        outputs: one text per fan-out item; one text without `for_each`; none before the first run.
    """

    __slots__ = ("_name", "_outputs")

    def __init__(self, name: str, outputs: Sequence[str] = ()) -> None:
        self._name = name
        self._outputs = tuple(outputs)

    @property
    def output(self) -> str:
        """The text; outputs of a fan-out joined with blank lines; empty before the first run."""
        return "\n\n".join(self._outputs)

    @property
    def lines(self) -> list[str]:
        """The lines that are not empty, stripped."""
        return split_lines(self.output)

    @property
    def items(self) -> list[str]:
        """One output per fan-out item."""
        return list(self._outputs)

    @property
    def json(self) -> Any:
        """The output read as JSON, a code fence around it removed; None before the first run.

        Raises:
            ValueError: it is not JSON.
        """
        if not self._outputs:
            return None
        try:
            return parse_json(self.output)
        except ValueError as exc:
            raise ValueError(f"the output of step {self._name!r} is not JSON: {exc}") from exc

    def field(self, name: str) -> Any:
        """The value of one of `STEP_FIELDS`; `KeyError` for anything else."""
        if name not in STEP_FIELDS:
            raise KeyError(name)
        return getattr(self, name)

    def __bool__(self) -> bool:
        return bool(self.output)

    def __str__(self) -> str:
        return self.output


def split_lines(text: str) -> list[str]:
    """The lines of `text` that are not empty, stripped."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def parse_json(text: str) -> Any:
    """JSON in `text`; models often wrap it in a code fence.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    fenced = _FENCE.match(text)
    try:
        return json.loads(fenced[1] if fenced else text)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
