"""Stages that wait in the coordinator: where, for how long, and when waiting has no point.

- While a connected node can serve one of its models, a stage waits for a slot, within the limits
  of `Patience`.
- While none can, its class is *homeless*. A stage of an outside caller is given up after
  `HOMELESS_GRACE_S`; a workflow's waits for a node to come back.
- When every node of the fleet is connected, or was never allowed the model, and none can ever
  serve it, it is given up at once, with the node's reason.
- When the model's engine has failed wherever there is one, and the node has said so to a stage, an
  outside caller is told at once; a workflow's stage waits for the node to try again.
- After a failure on the only node there is, a stage is *parked* for a moment before it queues
  again, so that the node can notice that its engine is gone.
"""

from __future__ import annotations

import math

from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.ids import ModelName, NodeName, StageId
from maestroctl.domain.outcome import Outcome
from maestroctl.scheduler.coordinator_dispatch import Dispatcher
from maestroctl.scheduler.coordinator_records import record_model, record_order, record_refusal
from maestroctl.scheduler.coordinator_state import StageState, StageStatus
from maestroctl.scheduler.coordinator_tables import CoordinatorTables
from maestroctl.scheduler.coordinator_timers import (
    HOMELESS_GRACE_S,
    RETRY_LATER_S,
    STALL_CHECK_S,
    Out,
    Patience,
    Timers,
)
from maestroctl.scheduler.ordering.stage_queue import QueueClass
from maestroctl.scheduler.routing.filters import places_kept_from
from maestroctl.scheduler.routing.fleet_state import Place
from maestroctl.scheduler.routing.model_choice import ModelChoice
from maestroctl.scheduler.routing.pipeline import RouteDecision

RETRY_PAUSE_S = 0.25
"""Before a retry on the only node: time for the node to notice that its engine is gone."""
MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1.0, 30.0
"""Bounds of what a rejected caller is told."""


class WaitingRoom:
    """Queue, pauses and patience."""

    def __init__(
        self,
        fleet: FleetSpec,
        tables: CoordinatorTables,
        timers: Timers,
        dispatcher: Dispatcher,
        model_choice: ModelChoice,
        max_queued: int,
    ) -> None:
        self._fleet_spec = fleet
        self._tables = tables
        self._timers = timers
        self._dispatcher = dispatcher
        self._model_choice = model_choice
        self._max_queued = max_queued
        self.patience = Patience(fleet.policy.queue_timeout_s)

    def enter(self, stage: StageState, decision: RouteDecision, now_s: float, out: Out) -> None:
        """A new stage found no place: it waits, or is rejected because too many do."""
        num_waiting = self._tables.num_waiting
        if num_waiting >= self._max_queued:
            self._reject(stage, now_s, out)
            return
        usable = next(self._tables.fleet.usable(stage.models, stage.excluded), None)
        why = "no connected node" if usable is None else decision.reason
        kept = places_kept_from(stage, self._tables.fleet)
        stage.is_kept_out = bool(kept)
        out.append(record_order(stage, num_waiting, why, kept, now_s))
        self.enqueue(stage, now_s, out)
        self._dispatcher.heed_wait(stage, decision, now_s, out)

    def set_models(self, stage: StageState, now_s: float, out: Out) -> None:
        """Narrow the candidates of a stage that is not queued."""
        if len(stage.stage.candidates) > 1:
            decision = self._model_choice.choose(stage, self._tables.fleet, now_s)
            stage.models = decision.models
            out.append(record_model(stage, decision, now_s))
        self._model_choice.on_models_set(stage)

    def park(self, stage: StageState, now_s: float, out: Out) -> None:
        """Queue the stage after a pause."""
        if stage.queued_s is None:
            stage.queued_s = now_s
        stage.status = StageStatus.PARKED
        self._tables.parked[stage.stage_id] = stage
        self._tables.log.append((now_s, stage.stage_id, "parked", stage.last_reason))

        def pause_over(at_s: float, later: Out) -> None:
            del self._tables.parked[stage.stage_id]
            if self._is_stranded(stage.models, stage.excluded):
                self.set_models(stage, at_s, later)
            self.enqueue(stage, at_s, later)
            self._dispatcher.pump_models(stage.models, at_s, later)

        self._timers.arm(_pause_name(stage.stage_id), now_s + RETRY_PAUSE_S, pause_over, out)

    def leave(self, stage: StageState, out: Out) -> None:
        """Take out a stage that waits here."""
        if stage.status is StageStatus.QUEUED:
            self._tables.queue.remove(stage)
        else:
            del self._tables.parked[stage.stage_id]
            self._timers.cancel(_pause_name(stage.stage_id), out)

    def enqueue(self, stage: StageState, now_s: float, out: Out) -> None:
        """Put the stage in its class, with a limit on how long it stays."""
        if stage.queued_s is None:
            stage.queued_s = now_s
        stage.status = StageStatus.QUEUED
        self._tables.log.append((now_s, stage.stage_id, "queued", stage.last_reason))
        queue_class = self._tables.queue.push(stage, now_s)
        if stage.stage.external:
            due_s = self.patience.expect(stage, self._tables.num_waiting)
            self._timers.arm_by("queue-timeout", due_s, self._give_up_overdue, out)
        else:
            due_s = now_s + self.patience.timeout_s
            self._timers.arm_by("queue-stall", due_s, self._give_up_stalled, out)
        self._settle(queue_class, now_s, out)

    def rehome(self, now_s: float, out: Out) -> None:
        """Which models can be served has changed: choose again for stages that lost theirs."""
        queue = self._tables.queue
        for queue_class in list(queue.classes().values()):
            is_stranded = self._is_stranded(queue_class.models, queue_class.key[1])
            if queue_class.is_flexible and is_stranded:
                for stage in queue_class.stages():
                    self._rechoose(stage, now_s, out)
            if queue_class.num_live:
                self._settle(queue_class, now_s, out)

    def _is_stranded(
        self, models: tuple[ModelName, ...], excluded: tuple[tuple[NodeName, ModelName], ...]
    ) -> bool:
        """Nothing that could serve the models is there and has not failed."""
        usable = self._tables.fleet.usable(models, excluded)
        return all(place.failure is not None for place in usable)

    def _rechoose(self, stage: StageState, now_s: float, out: Out) -> None:
        decision = self._model_choice.choose(stage, self._tables.fleet, now_s)
        if decision.models == stage.models:
            return
        self._tables.queue.remove(stage)
        stage.models = decision.models
        self._model_choice.on_models_set(stage)
        out.append(record_model(stage, decision, now_s))
        self.enqueue(stage, now_s, out)

    def _settle(self, queue_class: QueueClass, now_s: float, out: Out) -> None:
        """Note whether any connected node can take the class; give it up when none ever will."""
        usable = self._tables.fleet.usable(queue_class.models, queue_class.key[1])
        place = next(usable, None)
        why: str | None = None
        retry_after_s: float | None = RETRY_LATER_S
        if place is not None:
            if queue_class.homeless_since_s is not None:
                queue_class.homeless_since_s = None
                queue_class.opened_s = now_s  # from here on it waits for slots
            if queue_class.is_external and _has_failed(place) and all(map(_has_failed, usable)):
                why = f"{place.name}: {place.failure}"
        else:
            if queue_class.homeless_since_s is None:
                queue_class.homeless_since_s = now_s
            why = self._why_never(queue_class)
            retry_after_s = None
            if why is None and queue_class.is_external:
                due_s = now_s + HOMELESS_GRACE_S
                self._timers.arm_by("no-node", due_s, self._give_up_homeless, out)
        if why is not None:
            for stage in queue_class.stages():
                self._give_up(stage, stage.last_reason or why, now_s, out, retry_after_s)

    def _why_never(self, queue_class: QueueClass) -> str | None:
        """Why no node of the fleet will ever take the class; None = one that is away might."""
        fleet, excluded = self._tables.fleet, queue_class.key[1]
        for name, spec in self._fleet_spec.nodes.items():
            node = fleet.nodes.get(name)
            if node is not None and node.is_usable:
                continue
            allowed = spec.models or queue_class.models
            if any(m in allowed and (name, m) not in excluded for m in queue_class.models):
                return None
        if not fleet.nodes:
            return None
        for node in fleet.nodes.values():
            for model, reason in node.snapshot.never_fits:
                if model in queue_class.models:
                    return f"{model} can never run on {node.name}: {reason}"
        return f"no node of the fleet can run {' or '.join(queue_class.models)}"

    def _reject(self, stage: StageState, now_s: float, out: Out) -> None:
        """The queue is full. Come back when about one in a hundred of it has gone."""
        reason = f"{self._tables.num_waiting} stages wait already"
        retry_after_s = min(
            MAX_RETRY_AFTER_S,
            max(MIN_RETRY_AFTER_S, self._dispatcher.dispatch_gap_s * self._max_queued / 100),
        )
        out.append(record_refusal(stage, "coordinator", reason, now_s))
        self._tables.resolve(stage, Outcome.REJECTED, reason, now_s, out, math.ceil(retry_after_s))

    def _give_up(
        self,
        stage: StageState,
        reason: str,
        now_s: float,
        out: Out,
        retry_after_s: float | None = RETRY_LATER_S,
    ) -> None:
        """Nothing serves the stage, which waits here: for now, or (None) for ever."""
        self.leave(stage, out)
        out.append(record_refusal(stage, "coordinator", reason, now_s))
        self._tables.resolve(stage, Outcome.UNAVAILABLE, reason, now_s, out, retry_after_s)

    def _give_up_overdue(self, now_s: float, out: Out) -> None:
        for stage in self.patience.overdue(now_s):
            self._give_up(stage, self._waited(stage, now_s), now_s, out)
        next_s = self.patience.next_s()
        if next_s is not None:
            self._timers.arm("queue-timeout", next_s, self._give_up_overdue, out)

    def _waited(self, stage: StageState, now_s: float) -> str:
        waited_s = now_s - (stage.queued_s or now_s)
        last = f"; last: {stage.last_reason}" if stage.last_reason else ""
        return f"no free slot for {' or '.join(stage.models)} in {waited_s:.0f} s{last}"

    def _give_up_stalled(self, now_s: float, out: Out) -> None:
        """Workflow stages whose models have served nobody for as long as they have waited."""
        next_s: float | None = None
        for queue_class in list(self._tables.queue.classes().values()):
            if queue_class.is_external:
                continue
            due_s = self.patience.stalled_since(queue_class) + self.patience.timeout_s
            if self._is_serving(queue_class) or queue_class.homeless_since_s is not None:
                due_s = max(due_s, now_s + self.patience.timeout_s)
            if due_s <= now_s:
                overdue, later_s = self.patience.split_stalled(queue_class.stages(), now_s)
                for stage in overdue:
                    self._give_up(stage, self._waited(stage, now_s), now_s, out)
                if later_s is None:
                    continue
                due_s = max(later_s, now_s + STALL_CHECK_S)
            next_s = due_s if next_s is None else min(next_s, due_s)
        if next_s is not None:
            self._timers.arm("queue-stall", next_s, self._give_up_stalled, out)

    def _is_serving(self, queue_class: QueueClass) -> bool:
        """Some stage is being answered by a model of the class right now."""
        return any(
            stage.status is StageStatus.STARTED
            for place in self._tables.fleet.usable(queue_class.models)
            for stage in self._tables.on_node.get(place.node.name, {}).values()
            if stage.place is place
        )

    def _give_up_homeless(self, now_s: float, out: Out) -> None:
        """Outside callers whose models no connected node has offered for the grace time."""
        next_s: float | None = None
        for queue_class in list(self._tables.queue.classes().values()):
            since_s = queue_class.homeless_since_s
            if since_s is None or not queue_class.is_external:
                continue
            for stage in queue_class.stages():
                due_s = max(since_s, stage.queued_s or 0.0) + HOMELESS_GRACE_S
                if due_s <= now_s:
                    self._give_up(stage, self._why_homeless(stage), now_s, out)
                elif next_s is None or due_s < next_s:
                    next_s = due_s
        if next_s is not None:
            self._timers.arm("no-node", next_s, self._give_up_homeless, out)

    def _why_homeless(self, stage: StageState) -> str:
        nodes = list(self._tables.fleet.nodes)
        where = f"none of the connected nodes ({', '.join(nodes)})" if nodes else "no node"
        last = f"; last: {stage.last_reason}" if stage.last_reason else ""
        verb = "serves" if nodes else "is connected to serve"
        return f"{where} {verb} {' or '.join(stage.models)}{last}"


def _has_failed(place: Place) -> bool:
    """Its engines have failed, and a stage has asked the node already, or is asking now."""
    return place.failure is not None and not place.is_open


def _pause_name(stage_id: StageId) -> str:
    return f"pause/{stage_id}"
