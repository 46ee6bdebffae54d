"""Sending stages to nodes and taking them back: the part of `CoordinatorCore` that holds slots.

After every event no queued stage could be dispatched, or `MAX_SENDS` were and the rest follows at
once: whatever opens a place pumps the classes that could use it, best (rank, key, id) first. So a
stage that finds an open place at its arrival overtakes nobody. Once the oldest of a class has
waited for longer than `max_wait_s` it goes before all that are not older, given back or not; late
ones go among late ones, and due for their share before anybody. A stage whose model is full or
blocked is skipped, never waited for, so one model cannot starve another; which of several models a
node serves is the node's decision, and it is offered stages for all of them, asleep and stopped
ones included, up to their slots.

A refusal that is not for good blocks the whole place (model and node), not the stage alone: the
stages behind it would be refused for the same reason, one round trip each. The block ends with
the node's next snapshot or its own hint; from the second refusal in a row on, not before a growing
pause, or refusal, snapshot and dispatch would chase each other at the speed of the link.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from maestroctl.domain.ids import ModelName
from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import InvariantViolation
from maestroctl.estimate.output_quantile import OutputQuantile
from maestroctl.scheduler.coordinator_records import record_order, record_route
from maestroctl.scheduler.coordinator_state import (
    AGED_RANK,
    LATE_RANK,
    MAX_ROLES,
    StageState,
    StageStatus,
)
from maestroctl.scheduler.coordinator_tables import CoordinatorTables
from maestroctl.scheduler.coordinator_timers import Out, Timers
from maestroctl.scheduler.effects import AdvisePrewarm, DispatchStage, RebookStage
from maestroctl.scheduler.ordering.base import LATE_SHARE, OrderingPolicy
from maestroctl.scheduler.ordering.costs import clamp_to_request, nominal_s
from maestroctl.scheduler.ordering.stage_queue import Entry, QueueClass
from maestroctl.scheduler.routing.filters import places_kept_from
from maestroctl.scheduler.routing.fleet_state import Place
from maestroctl.scheduler.routing.look_ahead import LookAhead
from maestroctl.scheduler.routing.pipeline import RouteDecision, RoutingPolicy

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0
"""Pause after the second refusal of a place in a row, doubled at each further one, at most this."""

MAX_SENDS = 64
"""Stages that are sent by one event. A node that returns, or slots that are kept no longer, open
thousands of places at once; the rest follows at once, between other events."""
MAX_LAPSES = 64
"""Stages that are found late in one event: when thousands are at once, the rest waits for the next
events, and one of them may be sent in its old turn meanwhile."""

Heads = list[tuple[Entry, QueueClass]]
"""Heap of the first of each class, as it counts in its turn."""


class Dispatcher:
    """Chooses places and keeps the reservations."""

    def __init__(
        self,
        tables: CoordinatorTables,
        timers: Timers,
        routing: RoutingPolicy,
        ordering: OrderingPolicy,
        look_ahead: LookAhead | None,
        epoch: int,
        max_wait_s: float = math.inf,
        booked_quantile: OutputQuantile | None = None,
    ) -> None:
        self._tables = tables
        self._timers = timers
        self._routing = routing
        self._ordering = ordering
        self._max_wait_s = max_wait_s if ordering.bounds_wait else math.inf
        self._late_credit = 0.0
        self._look_ahead = look_ahead
        self._epoch = epoch
        self._booked_quantile = booked_quantile or OutputQuantile()
        self._unpumped: set[ModelName] = set()  # models whose pump was cut short by `MAX_SENDS`
        self._last_dispatch_s: float | None = None
        self.dispatch_gap_s = 0.1
        """Running mean of the seconds between dispatches."""

    def exclude_misfits(self, stage: StageState) -> None:
        """Places whose engines are too short for the prompt are no places for this stage.

        Before it is queued, so that it waits among its like and holds up nobody. Where none is
        long enough nothing is excluded: the node says what is wrong.
        """
        fleet = self._tables.fleet
        prompt = stage.stage.prompt_tokens.full
        candidates = stage.stage.candidates
        if all(prompt < fleet.shortest_context(model) for model in candidates):
            return
        misfits = []
        fits = False
        for place in fleet.usable(candidates):
            if place.profile is not None and prompt >= place.profile.max_model_len:
                misfits.append((place.node.name, place.model))
            else:
                fits = True
        if fits:
            stage.excluded = tuple(sorted(misfits))

    def try_dispatch(self, stage: StageState, now_s: float, out: Out) -> RouteDecision:
        """Send the stage, which waits nowhere yet, where the policy says, if anywhere."""
        if not self._unpumped.isdisjoint(stage.models):
            return RouteDecision(None, "stages that came before it are about to be sent")
        decision = self._routing.route(stage, self._tables.fleet, now_s)
        if decision.place is not None:
            self._dispatch(stage, decision.place, decision, now_s, out)
        return decision

    def leave_node(self, stage: StageState) -> Place:
        """Release slot and booking."""
        place = stage.place
        assert place is not None
        place.num_batch -= stage.stage.service_class is ServiceClass.BATCH
        tables = self._tables
        tables.fleet.release(place, stage.seq, stage.booked_tokens)
        del tables.on_node[place.node.name][stage.stage_id]
        stage.place = None
        return place

    def rebook(self, stage: StageState, out: Out) -> None:
        """A better prediction came for a stage that is at a node: book by it here and there."""
        place, tables = stage.place, self._tables
        assert place is not None
        prompt = stage.stage.prompt_tokens.full
        tokens = max(self._booked_tokens(stage, place), prompt + stage.output_tokens)
        end_s = self._predict_end_s(stage, place, stage.dispatched_s + stage.wake_s)
        tables.fleet.rebook(place, stage.seq, tokens - stage.booked_tokens, end_s)
        if tokens == stage.booked_tokens:
            return
        stage.booked_tokens = tokens
        tables.seq += 1
        out.append(
            RebookStage(
                stage.stage_id,
                stage.attempt,
                place.node.name,
                self._epoch,
                tables.seq,
                prompt,
                tokens,
            )
        )

    def pump_model(self, model: ModelName, now_s: float, out: Out) -> None:
        """A place of the model may have opened."""
        serving = self._tables.queue.serving(model)
        if serving and self._tables.fleet.open_places(model):
            self.pump(list(serving.values()), now_s, out)

    def pump_models(self, models: Iterable[ModelName], now_s: float, out: Out) -> None:
        """Places of several models may have opened: one order over all of them."""
        queue = self._tables.queue
        classes = {key: c for model in models for key, c in queue.serving(model).items()}
        if classes:
            self.pump(list(classes.values()), now_s, out)

    def pump_all(self, now_s: float, out: Out) -> None:
        """Anything may have opened."""
        self.pump(list(self._tables.queue.classes().values()), now_s, out)

    def pump(self, classes: list[QueueClass], now_s: float, out: Out) -> None:
        """Dispatch from these classes, best first, until none of their heads has a place.

        Dispatching only closes places, so a class whose head has none is done with.
        """
        tables = self._tables
        aged_before_s = now_s - self._max_wait_s
        heads: Heads = []
        for queue_class in classes:
            entry = queue_class.first(aged_before_s)
            if entry is not None:
                heads.append((self._turn(entry), queue_class))
        heapify(heads)
        last_seq = tables.seq + MAX_SENDS
        lapses_left = MAX_LAPSES if self._ordering.can_lapse else 0
        while heads:
            if tables.seq >= last_seq:
                self._pump_later([queue_class for _, queue_class in heads], now_s, out)
                return
            entry, queue_class = heads[0]
            stage = entry[4]
            if lapses_left and stage.rank == 1 and self._lapse(stage, heads, now_s):
                lapses_left -= 1
                continue
            decision = self._routing.route(stage, tables.fleet, now_s)
            if decision.place is None:
                if decision.wait_s is not None and self._send_back(queue_class, now_s, out):
                    self._go_on_with(heads, aged_before_s)  # it may have been the first itself
                    continue
                self._note_kept(stage, decision, now_s, out)
                self.heed_wait(stage, decision, now_s, out)
                heappop(heads)
                continue
            self._count_share(stage, heads)
            tables.queue.remove(stage)
            self._dispatch(stage, decision.place, decision, now_s, out)
            self._go_on_with(heads, aged_before_s)

    def _go_on_with(self, heads: Heads, aged_before_s: float) -> None:
        """Another is the first of the class whose turn it was."""
        queue_class = heads[0][1]
        following = queue_class.first(aged_before_s)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (self._turn(following), queue_class))

    def _pump_later(self, classes: list[QueueClass], now_s: float, out: Out) -> None:
        """Enough for one event: go on with these classes in the next."""
        self._unpumped.update(model for queue_class in classes for model in queue_class.models)

        def go_on(at_s: float, later: Out) -> None:
            models, self._unpumped = sorted(self._unpumped), set()
            self.pump_models(models, at_s, later)

        self._timers.arm_by("pump", now_s, go_on, out)

    def _note_kept(
        self, stage: StageState, decision: RouteDecision, now_s: float, out: Out
    ) -> None:
        """Say once in the records of a stage that R keeps it from slots which are free."""
        if stage.is_kept_out:
            return
        kept = places_kept_from(stage, self._tables.fleet)
        if kept:
            stage.is_kept_out = True
            num_others = self._tables.num_waiting - 1
            out.append(record_order(stage, num_others, decision.reason, kept, now_s))

    def _send_back(self, queue_class: QueueClass, now_s: float, out: Out) -> bool:
        """The first of a class prefers to wait: does one of the back half, whose wait is longer?"""
        stage = queue_class.last()
        if stage is None:
            return False
        tables = self._tables
        decision = self._routing.route_behind(
            stage, queue_class.num_live // 2, now_s - queue_class.opened_s, tables.fleet, now_s
        )
        if decision.place is None:
            return False
        tables.queue.remove(stage)
        self._dispatch(stage, decision.place, decision, now_s, out)
        return True

    def _lapse(self, stage: StageState, heads: Heads, now_s: float) -> bool:
        """Its turn has come: move it behind the others if it is late by now."""
        key = self._ordering.late_key(stage, now_s)
        if key is None:
            return False
        late = self._tables.queue.rekey(stage, LATE_RANK, key, now_s)
        aged_before_s = now_s - self._max_wait_s
        self._go_on_with(heads, aged_before_s)
        heads[:] = [head for head in heads if head[1] is not late]
        first = late.first(aged_before_s)
        assert first is not None
        heads.append((self._turn(first), late))
        heapify(heads)
        return True

    def _turn(self, entry: Entry) -> Entry:
        """The entry as it counts now: a late stage goes first when its share is due."""
        if entry[4].rank == LATE_RANK and self._late_credit >= 1.0:
            return (entry[0] - LATE_RANK + AGED_RANK, *entry[1:])
        return entry

    def _count_share(self, stage: StageState, heads: Heads) -> None:
        """`stage` is dispatched: what the late ones that wait are owed for it.

        Nothing is saved up while none waits, and at most one dispatch is owed.
        """
        if not self._ordering.can_lapse:
            return
        if stage.rank == LATE_RANK:
            self._late_credit = 0.0
        elif any(queue_class.key[5] for _, queue_class in heads):
            self._late_credit = min(1.0, self._late_credit + LATE_SHARE)

    def check_pumped(self) -> None:
        """Raise when the first stage of some class could be dispatched now.

        Raises:
            InvariantViolation: names the stage.
        """
        if not self._routing.is_timeless:
            return
        for queue_class in self._tables.queue.classes().values():
            entry = queue_class.first()
            if entry is None or not self._unpumped.isdisjoint(queue_class.models):
                continue
            stage = entry[4]
            decision = self._routing.route(stage, self._tables.fleet, stage.queued_s or 0.0)
            if decision.place is not None:
                raise InvariantViolation(
                    f"stage {stage.stage_id} waits although {decision.place.name} is open",
                    story=self._tables.story(stage.stage_id),
                )

    def _dispatch(
        self, stage: StageState, place: Place, decision: RouteDecision, now_s: float, out: Out
    ) -> None:
        tables = self._tables
        node = place.node
        stage_id = stage.stage_id
        place.num_batch += stage.stage.service_class is ServiceClass.BATCH
        tables.seq = seq = tables.seq + 1
        stage.attempt += 1
        stage.seq = seq
        stage.place = place
        stage.status = StageStatus.IN_FLIGHT
        stage.dispatched_s = now_s
        stage.wake_s = place.ready_in_s
        stage.booked_tokens = tokens = self._booked_tokens(stage, place)
        begins_s = now_s + stage.wake_s
        if place.free_s is not None:
            begins_s = max(begins_s, place.free_s)
        end_s = self._predict_end_s(stage, place, begins_s)
        tables.fleet.reserve(place, seq, tokens, end_s)
        _remember_home(stage, place)
        tables.on_node.setdefault(node.name, {})[stage_id] = stage
        tables.counters.dispatched += 1
        self._note_dispatch(now_s)
        tables.log.append((now_s, stage_id, "dispatched", place.name))
        out.append(
            DispatchStage(
                stage_id,
                stage.attempt,
                node.name,
                place.model,
                self._epoch,
                seq,
                stage.stage.prompt_tokens.full,
                tokens,
                stage.stage.service_class,
                stage.key,
            )
        )
        out.append(record_route(stage, place, decision, now_s))
        if self._look_ahead is not None:
            self._advise(stage, now_s, out)

    def _predict_end_s(self, stage: StageState, place: Place, begins_s: float) -> float:
        """When a stage that begins then will leave: RTT and T_exec at the pace of the model."""
        tokens = clamp_to_request(stage.stage, stage.prediction.output_q50)
        prompt = stage.stage.prompt_tokens.full
        pace = self._tables.profile.pace(place.model)
        return begins_s + place.node.rtt_s + pace * nominal_s(place.profile, prompt, tokens)

    def _note_dispatch(self, now_s: float) -> None:
        if self._last_dispatch_s is not None:
            self.dispatch_gap_s += 0.05 * (now_s - self._last_dispatch_s - self.dispatch_gap_s)
        self._last_dispatch_s = now_s

    def _advise(self, stage: StageState, now_s: float, out: Out) -> None:
        assert self._look_ahead is not None
        assert stage.place is not None
        here = stage.place.node.name
        for advice in self._look_ahead.advise(stage, self._tables.fleet, now_s):
            out.append(
                AdvisePrewarm(
                    advice.node,
                    advice.model,
                    advice.probability,
                    advice.expected_at_s,
                    self._epoch,
                    stage.seq if advice.node == here else 0,
                )
            )

    def heed_wait(self, stage: StageState, decision: RouteDecision, now_s: float, out: Out) -> None:
        """The policy wants to be asked again although nothing may have opened by then."""
        if decision.wait_s is not None and decision.wait_s > 0:
            models = stage.models

            def ask_again(at_s: float, later: Out) -> None:
                self.pump_models(models, at_s, later)

            self._timers.arm_by(
                f"route/{'|'.join(models)}", now_s + decision.wait_s, ask_again, out
            )

    def block(self, place: Place, retry_in_s: float | None, now_s: float, out: Out) -> None:
        """No stage goes to the place before the node says something new, or its hint."""
        place.refusals += 1
        pause_s = 0.0
        if place.refusals > 1:
            pause_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(place.refusals - 2, 10))
        place.blocked_until_s = now_s + pause_s
        self._tables.fleet.refresh(place)
        if retry_in_s is not None:
            self._arm_unblock(place, now_s + max(pause_s, retry_in_s), out)

    def _arm_unblock(self, place: Place, at_s: float, out: Out) -> None:
        def unblock(now_s: float, later: Out) -> None:
            place.blocked_until_s = None
            self._tables.fleet.refresh(place)
            self.pump_model(place.model, now_s, later)

        self._timers.arm_by(_unblock_name(place), at_s, unblock, out)

    def node_spoke(self, places: Iterable[Place], out: Out) -> None:
        """A snapshot came: keep the timers of blocked places in step with it."""
        for place in places:
            if place.blocked_until_s is None:
                self._timers.cancel(_unblock_name(place), out)
            else:
                self._arm_unblock(place, place.blocked_until_s, out)

    def _booked_tokens(self, stage: StageState, place: Place) -> int:
        predicted = stage.prediction
        output = self._booked_quantile.of(predicted.output_q50, predicted.output_q90)
        return booked_tokens(stage, output, place)

    def forget_node(self, places: Iterable[Place], out: Out) -> None:
        """The node of these places is gone."""
        for place in places:
            self._timers.cancel(_unblock_name(place), out)


def booked_tokens(stage: StageState, output_tokens: float, place: Place) -> int:
    """Prompt plus the admission quantile of the output, clamped to what can come out.

    Source: algorithms section 1: L-hat is clamped to min(max_tokens, max_model_len - P).
    """
    prompt = stage.stage.prompt_tokens.full
    output = math.ceil(output_tokens)
    max_tokens = stage.stage.max_tokens
    if max_tokens is not None and max_tokens < output:
        output = max_tokens
    if place.profile is not None and prompt + output > place.profile.max_model_len:
        output = place.profile.max_model_len - prompt
    return prompt + max(1, output)


def _remember_home(stage: StageState, place: Place) -> None:
    """Its prompt will be in the prefix cache there."""
    job, role = stage.job, stage.stage.role
    if job.homes is None:
        job.homes = {}
    if role in job.homes or len(job.homes) < MAX_ROLES:
        job.homes[role] = (place.name, stage.stage.prompt_tokens.full)


def _unblock_name(place: Place) -> str:
    return f"unblock/{place.name}"
