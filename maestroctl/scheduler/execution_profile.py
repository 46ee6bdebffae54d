"""The rolling execution profile: how much of a job is usually left after a stage (Maestro Eq 8).

Theory of operation. A job is at a *state* (workflow, step and role, earlier calls of that role)
when a stage of it ends. What the job did after that, in execution and tool seconds without
queueing and without wakes, is one sample of T_next at the state; it is known when the job is
finished, so samples are taken then. Jobs that fail or are cancelled are censored and give none.

Two figures are kept of each sample. *Work* sums over the branches of a fan-out: that is what the
job takes from the fleet, and order uses it. The *path* counts parallel branches once: that is how
long the job needs at least, and deadlines use it. A stage's path begins where the longest branch
that had ended when it became ready ended, so a branch that has nothing to do with it can lengthen
its path, never shorten it.

Shrinkage. A state with n samples is estimated as (n x own + K x parent) / (n + K), K = 4, where
the parent of a state is its workflow (all its states pooled) and that of a workflow is the fleet,
estimated the same way; the fleet's parent is zero, "nothing follows".

Memory. The last 64 samples of a state and of a workflow, 512 of the fleet; 4,096 states and 512
workflows, the longest unused forgotten first; 64 marks of a live job.

`paces` says how much longer stages of a model really take than Eq 2 says for a batch of one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import NamedTuple, TypeVar

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.stage import StageDescriptor

SHRINKAGE = 4.0
"""K: samples that the parent's estimate counts as."""
WINDOW, FLEET_WINDOW = 64, 512
MAX_STATES, MAX_WORKFLOWS = 4096, 512
MAX_MARKS, MAX_STEPS, MAX_PACES = 64, 64, 256
MAX_VISITS = 32
"""Later calls of a role count as this many."""
BRANCHES_BELOW = 0.95
"""A workflow whose path was less than this part of its work has branches."""
_PACE_MEMORY = 0.98
"""What a stage that ended one stage ago still counts: about the last 50 matter."""

State = tuple[str, str, str, int]
"""Workflow, step, role, earlier calls of the role in the job."""


class _Mark(NamedTuple):
    """A stage ended: its state, and the job's work and path by then."""

    state: State
    work_s: float
    path_s: float


class _Sorted:
    """The last samples of one figure, in order."""

    __slots__ = ("_by_age", "_limit", "_values")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_age: deque[float] = deque()
        self._values: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        if len(self._values) == self._limit:
            oldest = self._by_age.popleft()
            del self._values[bisect_left(self._values, oldest)]
        self._by_age.append(value)
        insort(self._values, value)

    def quantile(self, part: float) -> float:
        """By interpolation; 0 when there is none."""
        values = self._values
        if not values:
            return 0.0
        place = part * (len(values) - 1)
        low = int(place)
        high = min(low + 1, len(values) - 1)
        return values[low] + (place - low) * (values[high] - values[low])


class _Samples:
    """Work and path that followed, of one state, workflow or fleet."""

    __slots__ = ("path_s", "work_s")

    def __init__(self, limit: int = WINDOW) -> None:
        self.work_s = _Sorted(limit)
        self.path_s = _Sorted(limit)

    def add(self, work_s: float, path_s: float) -> None:
        self.work_s.add(work_s)
        self.path_s.add(path_s)


class _Walk:
    """A live job.

    Attributes:
        work_s: execution and tool seconds so far, all branches.
        path_s: seconds of the longest branch so far.
        ends: step -> path at the end of its last stage or tool call.
        marks: the stages that ended.
    """

    __slots__ = ("ends", "marks", "path_s", "work_s")

    def __init__(self) -> None:
        self.work_s = 0.0
        self.path_s = 0.0
        self.ends: dict[str, float] = {}
        self.marks: list[_Mark] = []

    def went_on(self, step: str, seconds: float, start_s: float) -> float:
        """`step` was busy for `seconds` from `start_s` of the path on; its path by now."""
        self.work_s += seconds
        end_s = start_s + seconds
        self.path_s = max(self.path_s, end_s)
        if step in self.ends or len(self.ends) < MAX_STEPS:
            self.ends[step] = end_s
        return end_s


class ExecutionProfile:
    """What usually follows a stage. Owner: `CoordinatorCore`; policies read it."""

    __slots__ = ("_branching", "_fleet", "_paces", "_states", "_walks", "_workflows")

    def __init__(self) -> None:
        self._branching: OrderedDict[str, None] = OrderedDict()
        self._walks: dict[JobId, _Walk] = {}
        self._states: OrderedDict[State, _Samples] = OrderedDict()
        self._workflows: OrderedDict[str, _Samples] = OrderedDict()
        self._fleet = _Samples(FLEET_WINDOW)
        self._paces: dict[ModelName, tuple[float, float]] = {}

    # --- what the core tells --------------------------------------------------------------------

    def stage_ended(self, stage: StageDescriptor, served_s: float, start_s: float) -> None:
        """A stage finished.

        Args:
            stage: the stage.
            served_s: its execution seconds.
            start_s: `path_s` of its job when it became ready.
        """
        walk = self._walk(stage.job_id)
        end_s = walk.went_on(stage.place, served_s, start_s)
        if len(walk.marks) < MAX_MARKS:
            walk.marks.append(_Mark(state_of(stage), walk.work_s, end_s))

    def tools_ran(self, job_id: JobId, step: str, seconds: float) -> None:
        """Tools of the step took `seconds` after its last stage."""
        walk = self._walk(job_id)
        walk.went_on(step, seconds, walk.ends.get(step, walk.path_s))

    def job_finished(self, job_id: JobId) -> None:
        """The job is over, and did all it had to: every stage of it is a sample."""
        walk = self._walks.pop(job_id, None)
        if walk is None:
            return
        for state, work_s, path_s in walk.marks:
            self._sample(state, max(0.0, walk.work_s - work_s), max(0.0, walk.path_s - path_s))

    def job_broken(self, job_id: JobId) -> None:
        """The job failed or was cancelled: what would have followed is not known."""
        self._walks.pop(job_id, None)

    def note_pace(self, model: ModelName, nominal_s: float, served_s: float) -> None:
        """A stage of the model took `served_s` where Eq 2 at batch 1 says `nominal_s`."""
        served, nominal = self._paces.get(model, (1.0, 1.0))
        if model in self._paces or len(self._paces) < MAX_PACES:
            self._paces[model] = (
                _PACE_MEMORY * served + served_s,
                _PACE_MEMORY * nominal + nominal_s,
            )

    # --- what policies ask ----------------------------------------------------------------------

    def path_s(self, job_id: JobId) -> float:
        """Execution and tool seconds of the job's longest branch so far."""
        walk = self._walks.get(job_id)
        return 0.0 if walk is None else walk.path_s

    def future_work_s(self, stage: StageDescriptor, part: float = 0.5) -> float:
        """T_future of Eq 8: seconds of work after the stage, all branches, at quantile `part`."""
        own, flow = self._find(stage)
        fleet = self._fleet.work_s
        estimate = _shrink(fleet, 0.0, part)
        estimate = _shrink(flow.work_s if flow else None, estimate, part)
        return _shrink(own.work_s if own else None, estimate, part)

    def future_path_s(self, stage: StageDescriptor, part: float = 0.5) -> float:
        """The same along the longest branch: what must pass before the job can be finished."""
        own, flow = self._find(stage)
        fleet = self._fleet.path_s
        estimate = _shrink(fleet, 0.0, part)
        estimate = _shrink(flow.path_s if flow else None, estimate, part)
        return _shrink(own.path_s if own else None, estimate, part)

    def path_share(self, stage: StageDescriptor) -> float:
        """Of the work that usually follows the stage, the part on the longest branch: 1 in a chain.

        In (0, 1]; 1 where nothing is known.
        """
        if stage.workflow not in self._branching:
            return 1.0
        work_s, path_s = self.future_work_s(stage), self.future_path_s(stage)
        return min(1.0, path_s / work_s) if work_s > 0.0 and path_s > 0.0 else 1.0

    def pace(self, model: ModelName) -> float:
        """Seconds that a stage of the model takes per second of Eq 2 at batch 1."""
        served, nominal = self._paces.get(model, (1.0, 1.0))
        return served / nominal

    def size(self) -> tuple[int, int, int]:
        """States, workflows and live jobs that are kept."""
        return len(self._states), len(self._workflows), len(self._walks)

    # --- inside ---------------------------------------------------------------------------------

    def _walk(self, job_id: JobId) -> _Walk:
        walk = self._walks.get(job_id)
        if walk is None:
            walk = self._walks[job_id] = _Walk()
        return walk

    def _find(self, stage: StageDescriptor) -> tuple[_Samples | None, _Samples | None]:
        return self._states.get(state_of(stage)), self._workflows.get(stage.workflow)

    def _sample(self, state: State, work_s: float, path_s: float) -> None:
        _recent(self._states, state, MAX_STATES).add(work_s, path_s)
        _recent(self._workflows, state[0], MAX_WORKFLOWS).add(work_s, path_s)
        self._fleet.add(work_s, path_s)
        if path_s < BRANCHES_BELOW * work_s:
            self._branching[state[0]] = None
            self._branching.move_to_end(state[0])
            if len(self._branching) > MAX_WORKFLOWS:
                self._branching.popitem(last=False)


def state_of(stage: StageDescriptor) -> State:
    """state(J, k) of Eq 8."""
    return (stage.workflow, stage.place, stage.role, min(stage.invocation_index, MAX_VISITS))


def _shrink(samples: _Sorted | None, parent: float, part: float) -> float:
    if samples is None or not len(samples):
        return parent
    num = len(samples)
    return (num * samples.quantile(part) + SHRINKAGE * parent) / (num + SHRINKAGE)


KeyT = TypeVar("KeyT", bound=Hashable)


def _recent(table: OrderedDict[KeyT, _Samples], key: KeyT, limit: int) -> _Samples:
    """The entry, made when it is new; the longest unused one goes when there are too many."""
    samples = table.get(key)
    if samples is None:
        samples = table[key] = _Samples()
        if len(table) > limit:
            table.popitem(last=False)
    else:
        table.move_to_end(key)
    return samples
