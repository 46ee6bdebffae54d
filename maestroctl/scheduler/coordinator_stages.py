"""The life of a stage in `CoordinatorCore`, from its arrival to its one `ResolveStage`.

Theory of operation.

    StageArrived --a place is open--> IN_FLIGHT --first byte--> STARTED --StageEnded--> resolved
         |                            ^   |
         +--no place--> QUEUED -------+   +--refused, or preempted or failed before its first byte
                         ^   |            |
                         |   +--given up  +--> to the head of the queue, or PARKED first
                         +--------------------(a pause before a retry on the only node there is)

Giving back. A stage that had its turn and could not use it returns with rank 0, ahead of those
that have not had theirs, so a refusal costs it nothing but time. It keeps its key.

Trying again. Before the first byte nobody has seen anything, so a failed attempt is repeated once,
elsewhere if there is another node; after it, never. A stage that a node takes back for memory is
given back a few times without that.

Stale and illegal. An event about a stage that is over, or about an attempt that is over, is stale:
counted, nothing else. So of `NodeLost` and the `StageEnded` of that node's stages, whichever comes
first counts. An event about an attempt that was never sent raises and changes nothing.

See also: `coordinator_dispatch` (slots, order), `coordinator_waiting` (queue, patience).
"""

from __future__ import annotations

from maestroctl.domain.ids import NodeName, StageId
from maestroctl.domain.outcome import Outcome
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.coordinator_dispatch import Dispatcher
from maestroctl.scheduler.coordinator_records import record_prediction, record_refusal
from maestroctl.scheduler.coordinator_state import LATE_RANK, StageState, StageStatus
from maestroctl.scheduler.coordinator_tables import SHUTTING_DOWN, CoordinatorTables
from maestroctl.scheduler.coordinator_timers import RETRY_LATER_S, Out
from maestroctl.scheduler.coordinator_waiting import WaitingRoom
from maestroctl.scheduler.effects import ResolveStage, WithdrawStage
from maestroctl.scheduler.events import (
    PredictionArrived,
    StageArrived,
    StageCancelled,
    StageEnded,
    StageProgressed,
    StageRefused,
    StageStarted,
)
from maestroctl.scheduler.interactive_reserve import InteractiveReserves
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.ordering.costs import Costs
from maestroctl.scheduler.routing.fleet_state import Place
from maestroctl.scheduler.routing.model_choice import ModelChoice

MAX_PREEMPTIONS = 3
"""Times a stage is taken back for memory before its first byte; then it ends as PREEMPTED."""


class StageFlow:
    """Every transition of a stage."""

    def __init__(
        self,
        tables: CoordinatorTables,
        dispatcher: Dispatcher,
        waiting: WaitingRoom,
        ordering: OrderingPolicy,
        model_choice: ModelChoice,
        costs: Costs,
        reserves: InteractiveReserves,
    ) -> None:
        self._tables = tables
        self._dispatcher = dispatcher
        self._waiting = waiting
        self._ordering = ordering
        self._model_choice = model_choice
        self._costs = costs
        self._reserves = reserves

    # --- events ---------------------------------------------------------------------------------

    def arrived(self, event: StageArrived, now_s: float, out: Out) -> None:
        """A stage is ready: dispatch it at once if a place is open, else it waits."""
        stage, tables = event.stage, self._tables
        stage_id = stage.stage_id
        if stage_id in tables.stages:
            raise self._impossible(stage_id, "it arrived twice")
        tables.counters.arrived += 1
        if tables.closing or (not stage.external and tables.jobs.is_finished(stage.job_id)):
            self._turn_away(event, now_s, out)
            return
        job = tables.jobs.of_stage(stage, now_s)
        state = StageState(stage, event.prediction, job, 0.0)
        self._dispatcher.exclude_misfits(state)
        self._waiting.set_models(state, now_s, out)
        state.key = self._ordering.key(state.as_chosen, job, event.prediction, now_s)
        state.path_s = tables.profile.path_s(stage.job_id)
        tables.stages[stage_id] = state
        job.add(state)
        tables.log.append((now_s, stage_id, "arrived", state.key))
        opened = self._reserves.stage_arrived(state.as_chosen, now_s)
        decision = self._dispatcher.try_dispatch(state, now_s, out)
        if decision.place is None:
            self._waiting.enter(state, decision, now_s, out)
        if opened:
            self._dispatcher.pump_model(state.models[0], now_s, out)

    def _turn_away(self, event: StageArrived, now_s: float, out: Out) -> None:
        """Nothing new is taken, or its job is over."""
        stage = event.stage
        if not self._tables.closing:
            outcome, reason, retry_after_s = Outcome.CANCELLED, "its job is over", None
        else:
            outcome, reason = _closing_outcome(stage.external), SHUTTING_DOWN
            retry_after_s = _closing_hint(outcome)
        self._tables.counters.resolved[outcome] += 1
        self._tables.log.append((now_s, stage.stage_id, outcome.value, reason))
        out.append(ResolveStage(stage.stage_id, outcome, reason, retry_after_s))

    def predicted(self, event: PredictionArrived, now_s: float, out: Out) -> None:
        """Book by the better prediction, or queue by it; its models stay as they were chosen."""
        stage = self._tables.stages.get(event.stage_id)
        if stage is None:
            self._tables.counters.stale += 1
            return
        stage.prediction = event.prediction
        self._model_choice.on_models_set(stage)
        before: float = stage.key if stage.place is None else stage.booked_tokens
        if stage.place is not None:
            self._dispatcher.rebook(stage, out)
        else:
            self._order_anew(stage, now_s)
        out.append(record_prediction(stage, before, now_s))

    def _order_anew(self, stage: StageState, now_s: float) -> None:
        """Its prediction changed while it waits; one that was found late may not be any more."""
        key = self._ordering.late_key(stage, now_s) if stage.rank == LATE_RANK else None
        rank = stage.rank if key is not None else min(stage.rank, 1)
        if key is None:
            key = self._ordering.key(stage.as_chosen, stage.job, stage.prediction, now_s)
        if stage.status is StageStatus.QUEUED:
            self._tables.queue.rekey(stage, rank, key, now_s)
        else:
            stage.rank, stage.key = rank, key

    def started(self, event: StageStarted, now_s: float) -> None:
        """The first byte came."""
        stage = self._attempt(event.stage_id, event.attempt)
        if stage is None or stage.status is StageStatus.STARTED:
            self._tables.counters.stale += 1
            return
        stage.status = StageStatus.STARTED
        assert stage.place is not None
        self._note_served(stage.place, now_s)
        self._tables.log.append((now_s, event.stage_id, "started", event.attempt))

    def progressed(self, event: StageProgressed) -> None:
        """Output tokens so far; they only grow."""
        stage = self._attempt(event.stage_id, event.attempt)
        if stage is None or event.output_tokens < stage.output_tokens:
            self._tables.counters.stale += 1
            return
        stage.output_tokens = event.output_tokens
        self._model_choice.on_stage_progressed(stage)

    def ended(self, event: StageEnded, now_s: float, out: Out) -> None:
        """The attempt is over: so is the stage, unless nothing was sent and it may try again."""
        stage = self._attempt(event.stage_id, event.attempt)
        if stage is None:
            self._tables.counters.stale += 1
            return
        started = event.started or stage.status is StageStatus.STARTED
        if event.usage is not None:
            stage.output_tokens = event.usage.output_tokens
        place = self._leave_node(stage, now_s, event.outcome is Outcome.FINISHED)
        if started or event.outcome is Outcome.FINISHED:
            self._note_served(place, now_s)
            self._tables.resolve(stage, event.outcome, event.reason, now_s, out)
            self._dispatcher.pump_model(place.model, now_s, out)
        else:
            self._end_unstarted(stage, place, event.outcome, event.reason, now_s, out)
            self._dispatcher.pump_models((*stage.models, place.model), now_s, out)

    def refused(self, event: StageRefused, now_s: float, out: Out) -> None:
        """The node did not take the stage: another place, or the head of the queue."""
        stage = self._attempt(event.stage_id, event.attempt)
        if stage is None:
            self._tables.counters.stale += 1
            return
        if stage.status is StageStatus.STARTED:
            raise self._impossible(event.stage_id, "it was refused after its first byte")
        self._tables.counters.refused += 1
        place = self._dispatcher.leave_node(stage)
        stage.output_tokens = 0
        stage.last_reason = event.reason
        self._tables.log.append((now_s, event.stage_id, "refused", event.reason))
        out.append(record_refusal(stage, place.name, event.reason, now_s))
        if event.permanent:
            pair = (place.node.name, place.model)
            stage.excluded = tuple(sorted({*stage.excluded, pair}))
        else:
            self._dispatcher.block(place, event.retry_in_s, now_s, out)
        self._give_back(stage, now_s, out)
        self._dispatcher.pump_models((*stage.models, place.model), now_s, out)

    def cancelled(self, event: StageCancelled, now_s: float, out: Out) -> None:
        """The caller went away."""
        stage = self._tables.stages.get(event.stage_id)
        if stage is None:
            self._tables.counters.stale += 1
            return
        place = self.withdraw(stage, Outcome.CANCELLED, "the caller went away", now_s, out)
        if place is not None:
            self._dispatcher.pump_model(place.model, now_s, out)

    # --- what other parts of the core ask for ---------------------------------------------------

    def withdraw(
        self, stage: StageState, outcome: Outcome, reason: str, now_s: float, out: Out
    ) -> Place | None:
        """End the stage wherever it is. Returns the place that has a slot more; pump it."""
        place = None
        if stage.place is not None:
            out.append(WithdrawStage(stage.stage_id, stage.attempt, stage.place.node.name))
            place = self._leave_node(stage, now_s)
        else:
            self._waiting.leave(stage, out)
        self._tables.resolve(stage, outcome, reason, now_s, out, _closing_hint(outcome))
        return place

    def node_lost(self, node_name: NodeName, reason: str, now_s: float, out: Out) -> None:
        """Take every stage off the node; those that had sent nothing may try elsewhere."""
        tables = self._tables
        stages = list(tables.on_node.get(node_name, {}).values())
        places = [self._leave_node(stage, now_s) for stage in stages]
        tables.on_node.pop(node_name, None)
        self._dispatcher.forget_node(tables.fleet.nodes[node_name].places.values(), out)
        tables.fleet.lose(node_name)
        self._reserves.places_replaced()
        why = f"node {node_name} was lost: {reason}"
        for stage, place in zip(stages, places, strict=True):
            if stage.status is StageStatus.STARTED:
                tables.resolve(stage, Outcome.FAILED, why, now_s, out)
            else:
                self._end_unstarted(stage, place, Outcome.FAILED, why, now_s, out)
        self._waiting.rehome(now_s, out)
        self._dispatcher.pump_all(now_s, out)

    def close(self, interrupt: bool, now_s: float, out: Out) -> None:
        """Resolve what waits; with `interrupt` also what runs."""
        tables = self._tables
        for stage in [*tables.queue, *tables.parked.values()]:
            external = stage.stage.external and not interrupt
            self.withdraw(stage, _closing_outcome(external), SHUTTING_DOWN, now_s, out)
        if interrupt:
            sent = [stage for stages in tables.on_node.values() for stage in stages.values()]
            for stage in sent:
                self.withdraw(stage, Outcome.INTERRUPTED, SHUTTING_DOWN, now_s, out)

    # --- attempts -------------------------------------------------------------------------------

    def _attempt(self, stage_id: StageId, attempt: int) -> StageState | None:
        """The stage, while this very attempt is at a node; None = stale."""
        stage = self._tables.stages.get(stage_id)
        if stage is None:
            return None
        if attempt == stage.attempt and stage.place is not None:
            return stage
        if attempt > stage.attempt or attempt < 1:
            raise self._impossible(stage_id, f"attempt {attempt} was never sent")
        return None

    def _impossible(self, stage_id: StageId, what: str) -> InvariantViolation:
        return InvariantViolation(f"stage {stage_id}: {what}", story=self._tables.story(stage_id))

    def _note_served(self, place: Place, now_s: float) -> None:
        self._tables.fleet.answered(place)
        self._waiting.patience.served(place.model, now_s)

    def _leave_node(self, stage: StageState, now_s: float, finished: bool = False) -> Place:
        """Release the slot, and count what the job has attained by it."""
        place = self._dispatcher.leave_node(stage)
        served_s = now_s - stage.dispatched_s - stage.wake_s
        if served_s < 0.0:
            served_s = 0.0
        job = stage.job
        job.attained_s += served_s
        job.attained_tokens += stage.output_tokens
        if finished:
            self._costs.stage_finished(stage, place, served_s)
        self._reserves.stage_ended(place.model, stage.stage.service_class, served_s, now_s)
        self._ordering.on_stage_ended(stage.stage, job, served_s, stage.output_tokens)
        return place

    def _end_unstarted(
        self,
        stage: StageState,
        place: Place,
        outcome: Outcome,
        reason: str,
        now_s: float,
        out: Out,
    ) -> None:
        """An attempt ended before its first byte: try again, where that is still allowed."""
        counters = self._tables.counters
        stage.last_reason = reason
        stage.output_tokens = 0
        if outcome in (Outcome.FAILED, Outcome.INTERRUPTED) and stage.retries == 0:
            stage.retries = 1
            counters.retried += 1
            stage.avoid = place.node.name
            self._tables.log.append((now_s, stage.stage_id, "retried", reason))
            if self._is_only_node(stage):
                stage.rank = 0
                self._waiting.park(stage, now_s, out)
            else:
                self._give_back(stage, now_s, out)
        elif outcome is Outcome.PREEMPTED and stage.preemptions < MAX_PREEMPTIONS:
            stage.preemptions += 1
            counters.preempted += 1
            self._give_back(stage, now_s, out)
        else:
            self._tables.resolve(stage, outcome, reason, now_s, out)

    def _is_only_node(self, stage: StageState) -> bool:
        """Its failed node is connected, and no other can take it."""
        usable = self._tables.fleet.usable(stage.models, stage.excluded)
        names = [place.node.name for place in usable]
        return (
            bool(names) and all(name == stage.avoid for name in names) and not self._tables.closing
        )

    def _give_back(self, stage: StageState, now_s: float, out: Out) -> None:
        """To the head of the queue; it had its turn and could not use it."""
        if self._tables.closing:
            outcome = _closing_outcome(stage.stage.external)
            hint = _closing_hint(outcome)
            self._tables.resolve(stage, outcome, SHUTTING_DOWN, now_s, out, hint)
            return
        stage.rank = 0
        self._waiting.set_models(stage, now_s, out)
        self._waiting.enqueue(stage, now_s, out)


def _closing_outcome(external: bool) -> Outcome:
    """An outside caller is told to go elsewhere; a workflow goes on at the next start."""
    return Outcome.UNAVAILABLE if external else Outcome.INTERRUPTED


def _closing_hint(outcome: Outcome) -> float | None:
    """Whoever starts the coordinator again may have done so by then."""
    return RETRY_LATER_S if outcome is Outcome.UNAVAILABLE else None
