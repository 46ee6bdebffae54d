"""Which steps of a job become ready when one ends.

Theory of operation. `WorkflowGraph` is what a `WorkflowSpec` means: who waits for whom, and which
steps a loop runs again. `WorkflowProgress` is one job's walk over it. A step goes

    WAITING --all it waits for are DONE--> PREPARING --StepPrepared(n)--> RUNNING --n items--> DONE

and `n = 0` goes straight to DONE. A step with `repeat` whose result says "again", and which has
been visited fewer than `at_most` times, sends control back instead of becoming DONE: its *body*,
every step on a path from `back_to` to it, both ends included, returns to WAITING with its visit
count raised by one.

Waiting. A step waits for its `after`. A step outside a loop's body that waits for a member of the
body also waits for the looping step, because the member may run again: so whatever reads a loop
from outside reads its last round and runs once. The rule is closed under itself (a loop's closer
may lie in another loop). At the moment a loop goes back, everything in its body is therefore DONE
and nothing outside it has consumed the body, so a reset never touches a running step.
Nested loops and loops that share `back_to` work; loops that cross so that each waits for the
other have no meaning and are refused. `at_most` counts all visits of the looping step in the job,
also those that an outer loop caused, so a job always ends.

Resuming. The results that the store remembers are kept per (step, visit) and consumed when the
walk reaches that visit. A visit whose items are all remembered is passed over; one of which a part
is remembered is prepared again, for its prompts are not kept, and runs the rest. Work whose result
is not remembered is done again. A width that comes out differently the second time is a
`ResumeConflict`: which items the remembered results belong to is then unknown.

Not here: what the steps say (rendering, tools, `until`) is the host's; see `live`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto

from maestroctl.domain.ids import JobId
from maestroctl.domain.workflow import StepSpec, WorkflowSpec
from maestroctl.errors import ConfigError, InvariantViolation
from maestroctl.scheduler.effects import PrepareStep, RunStep
from maestroctl.scheduler.events import StepRef, StepResult

StepEffect = PrepareStep | RunStep


class ResumeConflict(Exception):
    """A step fanned out to another width than before the restart; the job cannot go on."""


class StepStatus(Enum):
    """Where one step of a job stands in its current visit."""

    WAITING = auto()
    PREPARING = auto()
    RUNNING = auto()
    DONE = auto()


class WorkflowGraph:
    """Who waits for whom, and what each loop runs again.

    Attributes:
        waits: steps that must be DONE first, loop closers included.
        followers: the inverse of `waits`.
        bodies: looping step -> the steps it runs again, in the order of the file.

    Raises:
        ConfigError: unknown or circular `after`, a `back_to` that is not an ancestor, or loops
            that wait for each other.
    """

    __slots__ = ("bodies", "followers", "waits")

    def __init__(self, spec: WorkflowSpec) -> None:
        after = {name: _known_steps(spec, step) for name, step in spec.steps.items()}
        _refuse_cycle(after, "steps wait for each other in a circle")
        self.bodies = _loop_bodies(spec, after)
        self.waits = _waits(after, self.bodies)
        _refuse_cycle(
            self.waits,
            "loops overlap so that each waits for the other's end",
            hint="let one step that comes after all of them decide whether to go back",
        )
        followers: dict[str, list[str]] = {name: [] for name in spec.steps}
        for name, waits in self.waits.items():
            for other in waits:
                followers[other].append(name)
        self.followers = {name: tuple(names) for name, names in followers.items()}


def _known_steps(spec: WorkflowSpec, step: StepSpec) -> tuple[str, ...]:
    for other in step.after:
        if other not in spec.steps:
            raise ConfigError(
                f"step {step.name!r} comes after {other!r}, which is not a step of the workflow",
                key=f"step.{step.name}.after",
            )
    return tuple(dict.fromkeys(step.after))


def _refuse_cycle(waits: Mapping[str, Collection[str]], what: str, hint: str | None = None) -> None:
    """Raise when some steps can never be reached (Kahn's algorithm, in the order of the file)."""
    left = {name: len(others) for name, others in waits.items()}
    followers: dict[str, list[str]] = {name: [] for name in waits}
    for name, others in waits.items():
        for other in others:
            followers[other].append(name)
    ready = [name for name, count in left.items() if count == 0]
    for name in ready:
        for follower in followers[name]:
            left[follower] -= 1
            if left[follower] == 0:
                ready.append(follower)
    if len(ready) < len(waits):
        stuck = ", ".join(repr(name) for name, count in left.items() if count)
        raise ConfigError(f"{what}: {stuck}", key="step", hint=hint)


def _loop_bodies(
    spec: WorkflowSpec, after: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    bodies: dict[str, tuple[str, ...]] = {}
    for name, step in spec.steps.items():
        if step.repeat is None:
            continue
        start = step.repeat.back_to
        above = _ancestors(name, after)
        if start not in above:
            raise ConfigError(
                f"step {name!r} goes back to {start!r}, which does not come before it",
                key=f"step.{name}.repeat.back_to",
            )
        bodies[name] = tuple(
            other for other in spec.steps if other in above and start in _ancestors(other, after)
        )
    return bodies


def _ancestors(name: str, after: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """`name` and every step that it comes after; for membership only."""
    seen = {name}
    stack = [name]
    while stack:
        for other in after[stack.pop()]:
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return frozenset(seen)


def _waits(
    after: Mapping[str, tuple[str, ...]], bodies: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """`after`, and the closers of loops whose members are waited for from outside."""
    members = {closer: frozenset(body) for closer, body in bodies.items()}
    waits = {name: dict.fromkeys(others) for name, others in after.items()}
    grown = True
    while grown:
        grown = False
        for name, others in waits.items():
            for closer, body in members.items():
                if name in body or closer in others or body.isdisjoint(others):
                    continue
                others[closer] = None
                grown = True
    return {name: tuple(others) for name, others in waits.items()}


class _StepRun:
    """The current visit of one step. Owner: `WorkflowProgress`."""

    __slots__ = ("again", "done", "left", "status", "visit")

    def __init__(self) -> None:
        self.status = StepStatus.WAITING
        self.visit = 1  # counts loop rounds from 1
        self.done = bytearray()  # one flag per item
        self.left = 0  # items not done yet
        self.again = False  # some item of this visit asked for another round


class WorkflowProgress:
    """One job's walk over its workflow. Each method returns what is to be done next, or None.

    None says that the event was stale: it was true of an earlier visit, or is known already.
    Something that cannot have happened raises `InvariantViolation` and changes nothing.
    """

    __slots__ = ("_graph", "_history", "_job_id", "_runs", "_spec", "_undone")

    def __init__(
        self, job_id: JobId, spec: WorkflowSpec, finished: Iterable[StepResult] = ()
    ) -> None:
        self._job_id = job_id
        self._spec = spec
        self._graph = WorkflowGraph(spec)
        self._runs = {name: _StepRun() for name in spec.steps}
        self._undone = len(self._runs)  # steps that are not DONE
        self._history: dict[tuple[str, int], dict[int, StepResult]] = {}
        for result in finished:
            ref = result.ref
            self._history.setdefault((ref.step, ref.visit), {})[ref.item] = result

    @property
    def is_finished(self) -> bool:
        """Every step is DONE."""
        return self._undone == 0

    def statuses(self) -> tuple[tuple[str, StepStatus, int, int], ...]:
        """(step, status, visit, items left) in the order of the file."""
        return tuple((name, run.status, run.visit, run.left) for name, run in self._runs.items())

    def certain_followers(self, step: str) -> tuple[StepSpec, ...]:
        """Steps that run as soon as the stage of `step` in hand ends, where the file says so.

        Nothing of a step that may call tools or go back, or that has other items to run: what its
        stage leads to is then decided by what it says. Nothing either of a stage that is none of
        its steps: somebody sends it in the job's name.
        """
        if step not in self._spec.steps:
            return ()
        spec, run = self._spec.steps[step], self._runs[step]
        if spec.tools or spec.repeat is not None or run.left != 1:
            return ()
        return tuple(
            self._spec.steps[name]
            for name in self._graph.followers[step]
            if self._spec.steps[name].for_each is None
            and all(
                other == step or self._runs[other].status is StepStatus.DONE
                for other in self._graph.waits[name]
            )
        )

    def begin(self) -> list[StepEffect]:
        """Make ready what waits for nothing."""
        out: list[StepEffect] = []
        self._advance([name for name in self._runs if not self._graph.waits[name]], out)
        return out

    def prepared(self, step: str, visit: int, num_items: int) -> list[StepEffect] | None:
        """The host rendered the step: it runs `num_items` times.

        Raises:
            InvariantViolation: nobody asked for it.
            ResumeConflict: items of this visit are remembered, of another width.
        """
        run = self._run_of(step, visit)
        if run is None or run.status in (StepStatus.RUNNING, StepStatus.DONE):
            return None
        if run.status is StepStatus.WAITING or num_items < 0:
            raise self._impossible(f"step {step!r} visit {visit} prepared as {num_items} items")
        known = self._history.get((step, visit), {})
        width = next((result.num_items for result in known.values()), num_items)
        if width != num_items or any(item >= width for item in known):
            raise ResumeConflict(
                f"step {step!r} made {num_items} items, but {width} before the restart:"
                " its template does not always give the same list"
            )
        self._history.pop((step, visit), None)
        return self._start_items(step, run, num_items, known)

    def finished(self, result: StepResult) -> list[StepEffect] | None:
        """One item ended well.

        Raises:
            InvariantViolation: that item does not run.
        """
        ref = result.ref
        run = self._run_of(ref.step, ref.visit)
        if run is None or run.status is StepStatus.DONE:
            return None
        if run.status is not StepStatus.RUNNING or not 0 <= ref.item < len(run.done):
            raise self._impossible(f"{ref} finished, but it does not run")
        if result.num_items != len(run.done):
            raise self._impossible(f"{ref} finished as one of {result.num_items} items")
        if run.done[ref.item]:
            return None
        self._mark(run, result)
        out: list[StepEffect] = []
        if run.left == 0:
            self._advance(self._end_visit(ref.step, run), out)
        return out

    def check_running(self, ref: StepRef) -> bool:
        """Whether a failure of `ref` is news; False = stale.

        Raises:
            InvariantViolation: it was never asked for.
        """
        run = self._run_of(ref.step, ref.visit)
        if run is None or run.status is StepStatus.DONE:
            return False
        if run.status is StepStatus.WAITING:
            raise self._impossible(f"{ref} failed, but it does not run")
        return run.status is StepStatus.PREPARING or not (
            0 <= ref.item < len(run.done) and run.done[ref.item]
        )

    def _run_of(self, step: str, visit: int) -> _StepRun | None:
        """The run of this very visit; None = of an earlier one; raises for a later one."""
        run = self._runs.get(step)
        if run is None:
            raise self._impossible(f"no step {step!r}")
        if visit > run.visit or visit < 1:
            raise self._impossible(f"step {step!r} is at visit {run.visit}, not {visit}")
        return run if visit == run.visit else None

    def _impossible(self, what: str) -> InvariantViolation:
        story = tuple(
            f"{name}: {status.name.lower()}, visit {visit}, {left} items left"
            for name, status, visit, left in self.statuses()
        )
        return InvariantViolation(f"job {self._job_id}: {what}", story=story)

    def _advance(self, ready: list[str], out: list[StepEffect]) -> None:
        """Ask for each ready step, passing over visits the store remembers whole."""
        work = list(reversed(ready))
        while work:
            name = work.pop()
            run = self._runs[name]
            known = self._history.get((name, run.visit))
            if known is not None and _is_whole(known):
                del self._history[(name, run.visit)]
                self._start_items(name, run, len(known), known)
                work.extend(reversed(self._end_visit(name, run)))
            else:
                run.status = StepStatus.PREPARING
                out.append(PrepareStep(self._job_id, name, run.visit))

    def _start_items(
        self, step: str, run: _StepRun, num_items: int, known: Mapping[int, StepResult]
    ) -> list[StepEffect]:
        run.status = StepStatus.RUNNING
        run.done = bytearray(num_items)
        run.left = num_items
        run.again = False
        for result in known.values():
            self._mark(run, result)
        out: list[StepEffect] = [
            RunStep(self._job_id, StepRef(step, run.visit, item))
            for item in range(num_items)
            if not run.done[item]
        ]
        if num_items == 0:
            self._advance(self._end_visit(step, run), out)
        return out

    @staticmethod
    def _mark(run: _StepRun, result: StepResult) -> None:
        run.done[result.ref.item] = 1
        run.left -= 1
        run.again = run.again or result.repeat

    def _end_visit(self, step: str, run: _StepRun) -> list[str]:
        """All items are done: go back, or be DONE. Returns the steps that became ready."""
        repeat = self._spec.steps[step].repeat
        if repeat is not None and run.again and run.visit < repeat.at_most:
            return self._go_back(step, repeat.back_to)
        run.status = StepStatus.DONE
        self._undone -= 1
        return [name for name in self._graph.followers[step] if self._is_ready(name)]

    def _go_back(self, closer: str, back_to: str) -> list[str]:
        for name in self._graph.bodies[closer]:
            run = self._runs[name]
            if run.status is StepStatus.DONE:
                self._undone += 1
            run.status = StepStatus.WAITING
            run.visit += 1
        return [back_to]

    def _is_ready(self, name: str) -> bool:
        runs = self._runs
        return runs[name].status is StepStatus.WAITING and all(
            runs[other].status is StepStatus.DONE for other in self._graph.waits[name]
        )


def _is_whole(known: Mapping[int, StepResult]) -> bool:
    """Every item of the visit is remembered, and they agree on how many there were."""
    return all(
        result.num_items == len(known) and result.ref.item < len(known) for result in known.values()
    )
