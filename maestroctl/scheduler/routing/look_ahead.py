"""Advice to nodes on what a workflow will need next.

At a dispatch the core asks the look-ahead which models are likely wanted soon and where, and
passes its answer on as `AdvisePrewarm`. The node decides; an advice is never a booking.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from maestroctl.domain.ids import JobId, ModelName, NodeName
from maestroctl.estimate.service_time import estimate_prefill_s
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.execution_profile import State, state_of
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.scheduler.routing.place import Place

LEAST_CHANCE = 0.3
"""Less likely models are not advised (assumed)."""
MAX_STATES, MAX_JOBS, MAX_VISITS = 4096, 4096, 64
GAP_WEIGHT = 0.25


class PrewarmAdvice(NamedTuple):
    """`model` is likely needed on `node` at `expected_at_s`, in the core's time."""

    node: NodeName
    model: ModelName
    probability: float
    expected_at_s: float


class LookAhead(Protocol):
    """Looks at what follows a stage in its job."""

    def advise(self, stage: StageState, fleet: FleetState, now_s: float) -> Sequence[PrewarmAdvice]:
        """`stage` has just been dispatched (`stage.job`, `stage.place`)."""
        ...


class NoLookAhead:
    """Engines are woken when a stage arrives, not before."""

    def advise(
        self,
        stage: StageState,  # noqa: ARG002
        fleet: FleetState,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> Sequence[PrewarmAdvice]:
        """Nothing."""
        return ()


class WorkflowLookAhead:
    """The models that the workflow declares next, else those that followed the same state before.

    Theory of operation. Where the file says which step comes next and which one model serves it,
    that is certain and needs no experience (`WorkflowProgress.certain_followers`). Else it is
    learned: a job's stages are at states (workflow, step, role, earlier calls of the
    role), as in the rolling execution profile (Eq 8). At every dispatch the step from the job's
    former state to this stage's model is counted; the chance that a model follows a state is its
    count over the visits of the state, so jobs that end there count against it. The stage is
    expected when the one in hand should end (time until its engine is ready + Eq 2 with the median
    output) plus the gap usually seen at the state, which holds tools, queueing and what Eq 2 is
    off by. Old counts fade: they are halved at `MAX_VISITS`.

    The node is chosen as routing would: an awake engine of the model anywhere needs no advice;
    else the node that can have it ready soonest, disruption included, the one in use first.
    """

    def __init__(self) -> None:
        self._states: OrderedDict[State, _Followers] = OrderedDict()
        self._last: OrderedDict[JobId, tuple[State, float]] = OrderedDict()

    def advise(self, stage: StageState, fleet: FleetState, now_s: float) -> Sequence[PrewarmAdvice]:
        """See `LookAhead`."""
        place = stage.place
        if place is None:
            return ()
        job_id = stage.stage.job_id
        before = self._last.pop(job_id, None)
        if before is not None and before[0] in self._states:
            self._states[before[0]].follow(place.model, now_s - before[1])
        here = state_of(stage.stage)
        end_s = now_s + place.ready_in_s + _estimate_service_s(stage, place)
        self._last[job_id] = (here, end_s)
        if len(self._last) > MAX_JOBS:
            self._last.popitem(last=False)
        followers = self._visit(here)
        advice = []
        for model, chance in _declared(stage, fleet) or followers.chances():
            if chance < LEAST_CHANCE or model == place.model:
                continue
            node = _choose_node(fleet, model, place.node.name)
            if node is not None:
                expected_s = max(now_s, end_s + followers.gap_s)
                advice.append(PrewarmAdvice(node, model, chance, expected_s))
        followers.visits += 1.0
        return advice

    def _visit(self, state: State) -> _Followers:
        followers = self._states.get(state)
        if followers is None:
            followers = self._states[state] = _Followers()
            if len(self._states) > MAX_STATES:
                self._states.popitem(last=False)
        else:
            self._states.move_to_end(state)
        return followers


class _Followers:
    """What came after one state.

    Attributes:
        visits: stages dispatched at the state, old ones faded.
        gap_s: usual time from their expected end to the dispatch of the next stage.
    """

    __slots__ = ("_counts", "gap_s", "visits")

    def __init__(self) -> None:
        self.visits = 0.0
        self.gap_s = 0.0
        self._counts: dict[ModelName, float] = {}

    def follow(self, model: ModelName, gap_s: float) -> None:
        """A job went on with `model`, `gap_s` after its stage here was expected to end."""
        first = not self._counts
        self.gap_s = gap_s if first else self.gap_s + GAP_WEIGHT * (gap_s - self.gap_s)
        self._counts[model] = self._counts.get(model, 0.0) + 1.0
        if self.visits > MAX_VISITS:
            self.visits /= 2
            self._counts = {name: count / 2 for name, count in self._counts.items()}

    def chances(self) -> list[tuple[ModelName, float]]:
        """Models and their chances, most likely first, at most two."""
        ranked = sorted(self._counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return [(name, min(1.0, count / max(1.0, self.visits))) for name, count in ranked[:2]]


def _declared(stage: StageState, fleet: FleetState) -> list[tuple[ModelName, float]]:
    """Models of the steps that follow for certain; a step that leaves a choice names none."""
    progress = stage.job.progress
    if progress is None or stage.stage.external:
        return []
    named = [step.models for step in progress.certain_followers(stage.stage.step)]
    models = dict.fromkeys(ModelName(names[0]) for names in named if len(names) == 1)
    return [(model, 1.0) for model in models if fleet.places(model)]


def _estimate_service_s(stage: StageState, place: Place) -> float:
    """Eq 2 with the median output."""
    if place.profile is None:
        return 0.0
    prompt = stage.stage.prompt_tokens.full
    prefill_s = estimate_prefill_s(place.profile, prompt)
    return prefill_s + place.profile.decode_s * stage.prediction.output_q50


def _choose_node(fleet: FleetState, model: ModelName, here: NodeName) -> NodeName | None:
    """Where the model would be brought up; None when it is up somewhere, or cannot be."""
    able = []
    for place in fleet.places(model).values():
        if place.readiness > 0:
            return None
        if place.is_usable and place.profile is not None:
            able.append(place)
    best = min(
        able,
        key=lambda p: (
            p.disruption_s is None,  # no room as of now; by then there may be
            p.ready_in_s + (p.disruption_s or 0.0),
            p.node.name != here,
            p.node.name,
        ),
        default=None,
    )
    return None if best is None else best.node.name
