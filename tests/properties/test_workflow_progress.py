"""Small random workflows against a naive interpreter, with a crash at any point.

The interpreter keeps no state: it works out from the facts alone (which visits were prepared in
this life, which results exist) what must be prepared and what must run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from maestroctl.config.graph import add_loop_ends, find_cycle, find_loops
from maestroctl.domain.ids import JobId
from maestroctl.domain.workflow import StepSpec, WorkflowSpec
from maestroctl.errors import ConfigError
from maestroctl.scheduler.effects import PrepareStep
from maestroctl.scheduler.events import StepRef, StepResult
from maestroctl.scheduler.workflow_progress import StepEffect, WorkflowGraph, WorkflowProgress
from maestroctl.testing.coordinator_builders import make_step, make_workflow

JOB = JobId("j")
Visit = tuple[str, int]


@st.composite
def workflows(draw: st.DrawFn) -> WorkflowSpec:
    """Up to six steps: any acyclic edges, some fan-outs, some loops to an ancestor."""
    steps: list[StepSpec] = []
    above: dict[str, set[str]] = {}
    for number in range(draw(st.integers(1, 6))):
        name = "abcdef"[number]
        after = [step.name for step in steps if draw(st.booleans())]
        above[name] = {name}.union(*(above[other] for other in after))
        back_to = draw(st.none() | st.none() | st.sampled_from(sorted(above[name])))
        steps.append(make_step(name, after, back_to, draw(st.integers(1, 3)), draw(st.booleans())))
    return make_workflow(*draw(st.permutations(steps)))


@dataclass
class Interpreter:
    """What a workflow means, spelled out."""

    spec: WorkflowSpec
    prepared: dict[Visit, int] = field(default_factory=dict)
    results: list[StepResult] = field(default_factory=list)

    def body(self, closer: str) -> set[str]:
        """Every step on some path from `back_to` down to the looping step."""
        repeat = self.spec.steps[closer].repeat
        assert repeat is not None
        found: set[str] = set()

        def climb(path: list[str]) -> None:
            if path[-1] == repeat.back_to:
                found.update(path)
            for other in self.spec.steps[path[-1]].after:
                climb([*path, other])

        climb([closer])
        return found

    def reads(self, name: str) -> set[str]:
        """Everything that must be over before the step may begin."""
        found = set(self.spec.steps[name].after)
        while True:
            more = {other for step in found for other in self.spec.steps[step].after}
            for closer, step in self.spec.steps.items():
                if step.repeat is not None and name not in self.body(closer):
                    more |= {closer} if self.body(closer) & found else set()
            if more <= found:
                return found
            found |= more

    def is_meaningful(self) -> bool:
        """Run without loops, it comes to its end."""
        done: set[str] = set()
        for _ in self.spec.steps:
            done |= {name for name in self.spec.steps if self.reads(name) <= done}
        return len(done) == len(self.spec.steps)

    def outstanding(self) -> tuple[set[Visit], set[StepRef], bool]:
        """(visits to prepare, items to run, whether the job is over)."""
        visits = dict.fromkeys(self.spec.steps, 1)
        done: set[str] = set()
        while True:
            ready = [s for s in self.spec.steps if s not in done and self.reads(s) <= done]
            complete = [s for s in ready if self.is_complete((s, visits[s]))]
            if not complete:
                break
            self.end_visit(complete[0], visits, done)
        now = [(step, visits[step]) for step in ready]
        prepare = {visit for visit in now if visit not in self.prepared}
        run = {
            StepRef(step, visit, item)
            for step, visit in now
            for item in range(self.prepared.get((step, visit), 0))
            if StepRef(step, visit, item) not in [result.ref for result in self.results]
        }
        return prepare, run, done == set(self.spec.steps)

    def of(self, visit: Visit) -> list[StepResult]:
        return [r for r in self.results if (r.ref.step, r.ref.visit) == visit]

    def is_complete(self, visit: Visit) -> bool:
        results = self.of(visit)
        width = results[0].num_items if results else self.prepared.get(visit)
        return width is not None and len(results) == width

    def end_visit(self, step: str, visits: dict[str, int], done: set[str]) -> None:
        repeat = self.spec.steps[step].repeat
        again = any(result.repeat for result in self.of((step, visits[step])))
        if repeat is not None and again and visits[step] < repeat.at_most:
            for other in self.body(step):
                visits[other] += 1
                done.discard(other)
        else:
            done.add(step)


@settings(deadline=None, max_examples=200)
@given(workflows())
def test_exactly_the_workflows_that_cannot_come_to_an_end_are_refused(
    spec: WorkflowSpec,
) -> None:
    try:
        WorkflowGraph(spec)
    except ConfigError:
        assert not Interpreter(spec).is_meaningful()
    else:
        assert Interpreter(spec).is_meaningful()


@settings(deadline=None, max_examples=100)
@given(workflows())
def test_the_check_of_a_workflow_file_and_the_core_read_a_workflow_alike(
    spec: WorkflowSpec,
) -> None:
    after = {name: step.after for name, step in spec.steps.items()}
    repeats = {name: s.repeat.back_to for name, s in spec.steps.items() if s.repeat is not None}
    waits = add_loop_ends(after, find_loops(after, repeats))
    if find_cycle(waits):
        with pytest.raises(ConfigError):
            WorkflowGraph(spec)
    else:
        graph = WorkflowGraph(spec)
        assert {name: set(others) for name, others in graph.waits.items()} == {
            name: set(others) for name, others in waits.items()
        }


def split(effects: list[StepEffect] | None) -> tuple[set[Visit], set[StepRef]]:
    assert effects is not None
    prepare = [(e.step, e.visit) for e in effects if isinstance(e, PrepareStep)]
    run = [e.ref for e in effects if not isinstance(e, PrepareStep)]
    assert len(set(prepare)) == len(prepare)
    assert len(set(run)) == len(run)
    return set(prepare), set(run)


class Job:
    """A job that is walked, beside the interpreter, and may crash."""

    def __init__(self, spec: WorkflowSpec) -> None:
        self.spec = spec
        self.widths: dict[Visit, int] = {}  # what rendering gives, a pure function of the visit
        self.naive = Interpreter(spec)
        self.begin()

    def begin(self) -> None:
        """A coordinator starts with what the store has."""
        self.naive.prepared.clear()
        self.progress = WorkflowProgress(JOB, self.spec, self.naive.results)
        self.prepare, self.run = split(self.progress.begin())

    def step(self, data: st.DataObject) -> None:
        """Do one thing that is outstanding."""
        things = [*sorted(self.prepare), *sorted(self.run, key=str)]
        thing = things[data.draw(st.integers(0, len(things) - 1))]
        if isinstance(thing, StepRef):
            self.run.discard(thing)
            width = self.widths[(thing.step, thing.visit)]
            result = StepResult(thing, width, data.draw(st.booleans()))
            self.naive.results.append(result)
            effects = self.progress.finished(result)
        else:
            self.prepare.discard(thing)
            fan_out = self.spec.steps[thing[0]].for_each is not None
            if thing not in self.widths:
                self.widths[thing] = data.draw(st.integers(0, 3)) if fan_out else 1
            self.naive.prepared[thing] = self.widths[thing]
            effects = self.progress.prepared(*thing, self.widths[thing])
        prepare, run = split(effects)
        assert not prepare & self.prepare
        assert not run & self.run
        self.prepare |= prepare
        self.run |= run

    def check(self) -> None:
        assert (self.prepare, self.run, self.progress.is_finished) == self.naive.outstanding()


@settings(deadline=None, max_examples=200)
@given(workflows(), st.data())
def test_any_walk_with_crashes_asks_for_exactly_the_remaining_work(
    spec: WorkflowSpec, data: st.DataObject
) -> None:
    assume(Interpreter(spec).is_meaningful())
    job = Job(spec)
    crashes = data.draw(st.integers(0, 3))
    job.check()
    while not job.progress.is_finished:
        if crashes and data.draw(st.integers(0, 5)) == 0:
            crashes -= 1
            job.begin()
        else:
            job.step(data)
        job.check()
    refs = [result.ref for result in job.naive.results]
    assert len(refs) == len(set(refs)), "something ran twice"


@settings(deadline=None, max_examples=60)
@given(workflows(), st.data())
def test_every_prefix_of_the_results_leads_to_the_same_state(
    spec: WorkflowSpec, data: st.DataObject
) -> None:
    assume(Interpreter(spec).is_meaningful())
    job = Job(spec)
    while not job.progress.is_finished:
        job.step(data)
    results = job.naive.results
    for length in range(len(results) + 1):
        naive = Interpreter(spec, {}, results[:length])
        resumed = WorkflowProgress(JOB, spec, results[:length])
        prepare, run = split(resumed.begin())
        assert (prepare, run, resumed.is_finished) == naive.outstanding()
