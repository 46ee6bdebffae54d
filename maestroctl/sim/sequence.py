"""One stage inside an engine."""

from __future__ import annotations


class Sequence:
    """Prompt and output of a stage, in tokens. Owner: the engine model it was submitted to.

    Attributes:
        key: place in the queue, least first; ties by `order`, that of arrival.
        context: tokens in KV when it last joined or left the clock.
        left: output tokens still to come.
        todo: tokens still to prefill.
        booked: tokens that the node keeps for it.
        base: context minus V while it decodes.
        joined: V when it joined.
        epoch: raised whenever it leaves the clock, which outdates its marks.
        started: its first token has come.
        doomed: aborted, and dropped at the end of the iteration.
    """

    __slots__ = (
        "base",
        "booked",
        "context",
        "doomed",
        "epoch",
        "joined",
        "key",
        "left",
        "name",
        "order",
        "started",
        "todo",
    )

    def __init__(
        self, name: str, key: float, prompt: int, output: int, booked: int, cached: int = 0
    ) -> None:
        self.name = name
        self.key = key
        self.order = 0
        self.context = max(1, prompt)
        self.left = max(1, output)
        self.todo = max(1, self.context - cached)
        self.booked = booked
        self.base = 0
        self.joined = 0
        self.epoch = 0
        self.started = False
        self.doomed = False
