"""One long scripted life of a coordinator; prints every effect. Run under several hash seeds."""

from __future__ import annotations

from random import Random

from maestroctl.domain.ids import JobId, NodeName, StageId, TimerId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.effects import (
    CancelTimer,
    CoordinatorEffect,
    DispatchStage,
    FinishJob,
    PrepareStep,
    ResolveStage,
    RunStep,
    SetTimer,
    WithdrawStage,
)
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    JobCancelled,
    NodeLost,
    StageCancelled,
    StageEnded,
    StageRefused,
    StageStarted,
    StepFinished,
    StepPrepared,
    StepResult,
    TimerFired,
)
from maestroctl.testing.coordinator_builders import (
    arrival,
    make_engine,
    make_fleet,
    make_profile,
    make_snapshot,
    make_stage,
    make_step,
    make_workflow,
    node_says,
    submission,
)

MODELS = ["qwen", "llama", "phi", "gemma", "mistral"]
NODES = dict.fromkeys(("alpha", "beta", "gamma"), MODELS)
FLOW = make_workflow(
    make_step("plan"),
    make_step("work", ["plan"], fan_out=True),
    make_step("side", ["plan"]),
    make_step("join", ["work", "side"], back_to="plan", at_most=3),
    make_step("end", ["join"]),
)


class Script:
    """A host that reacts to effects at once and makes trouble at random (seeded)."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.core = CoordinatorCore(make_fleet(MODELS, NODES), 1, max_queued=200)
        self.now_s = 0.0
        self.lines: list[str] = []
        self.sent: dict[str, DispatchStage] = {}
        self.waiting: dict[str, None] = {}
        self.timers: dict[str, float] = {}
        self.steps: list[PrepareStep | RunStep] = []
        self.jobs: dict[str, None] = {}
        self.widths: dict[tuple[str, str, int], int] = {}

    def tell(self, event: CoordinatorEvent) -> None:
        for effect in self.core.handle(event, self.now_s):
            self.lines.append(repr(effect))
            self.carry_out(effect)

    def carry_out(self, effect: CoordinatorEffect) -> None:
        match effect:
            case DispatchStage():
                self.sent[effect.stage_id] = effect
                self.waiting.pop(effect.stage_id, None)
            case WithdrawStage():
                self.sent.pop(effect.stage_id, None)
            case ResolveStage():
                self.sent.pop(effect.stage_id, None)
                self.waiting.pop(effect.stage_id, None)
            case SetTimer():
                self.timers[effect.timer_id] = effect.at_s
            case CancelTimer():
                self.timers.pop(effect.timer_id, None)
            case PrepareStep() | RunStep():
                self.steps.append(effect)
            case FinishJob():
                self.jobs.pop(effect.job_id, None)
                self.steps = [step for step in self.steps if step.job_id != effect.job_id]
            case _:
                pass

    def run(self, length: int) -> None:
        things = [self.arrive] * 6 + [self.end] * 6 + [self.go_on] * 4
        things += [self.speak, self.lose, self.refuse, self.cancel, self.submit, self.fire]
        for number in range(length):
            self.now_s += self.random.random()
            self.random.choice(things)(number)

    def arrive(self, number: int) -> None:
        models = self.random.sample(MODELS, self.random.randint(1, 3))
        service_class = self.random.choice(list(ServiceClass))
        stage = make_stage(
            f"s{number:05}",
            f"job{number % 7}",
            models,
            self.now_s,
            external=self.random.random() < 0.5,
            service_class=service_class,
            role=self.random.choice(["coder", "tester", "writer"]),
        )
        self.waiting[stage.stage_id] = None
        self.tell(arrival(stage))

    def end(self, _number: int) -> None:
        if self.sent:
            dispatch = self.random.choice(list(self.sent.values()))
            del self.sent[dispatch.stage_id]
            started = self.random.random() < 0.8
            if started:
                self.tell(StageStarted(dispatch.stage_id, dispatch.attempt))
            outcome = self.random.choice([Outcome.FINISHED, Outcome.FAILED, Outcome.PREEMPTED])
            self.tell(StageEnded(dispatch.stage_id, dispatch.attempt, outcome, started))

    def go_on(self, _number: int) -> None:
        if not self.steps:
            return
        step = self.steps.pop(self.random.randrange(len(self.steps)))
        if isinstance(step, PrepareStep):
            width = self.random.randint(0, 4) if step.step == "work" else 1
            self.widths[(step.job_id, step.step, step.visit)] = width
            self.tell(StepPrepared(step.job_id, step.step, step.visit, width))
        else:
            width = self.widths[(step.job_id, step.ref.step, step.ref.visit)]
            self.tell(StepFinished(step.job_id, StepResult(step.ref, width, True)))

    def speak(self, number: int) -> None:
        name = self.random.choice(list(NODES))
        models = self.random.sample(MODELS, self.random.randint(1, 5))
        engines = [make_engine(model, self.random.randint(0, 3), node=name) for model in models]
        profiles = [make_profile(model, max_batch=2) for model in MODELS]
        self.tell(node_says(make_snapshot(name, engines, profiles, float(number))))

    def lose(self, _number: int) -> None:
        name = self.random.choice(list(NODES))
        self.sent = {key: sent for key, sent in self.sent.items() if sent.node != name}
        self.tell(NodeLost(NodeName(name), "cable"))

    def refuse(self, _number: int) -> None:
        if self.sent:
            dispatch = self.random.choice(list(self.sent.values()))
            del self.sent[dispatch.stage_id]
            permanent = self.random.random() < 0.3
            hint = self.random.choice([None, 0.5, 3.0])
            self.tell(StageRefused(dispatch.stage_id, dispatch.attempt, "no", {}, permanent, hint))

    def cancel(self, number: int) -> None:
        stages = [*self.waiting, *self.sent]
        if stages:
            self.tell(StageCancelled(StageId(self.random.choice(stages))))
        if self.jobs and number % 3 == 0:
            self.tell(JobCancelled(JobId(self.random.choice(list(self.jobs)))))

    def submit(self, number: int) -> None:
        self.jobs[f"flow{number}"] = None
        self.tell(submission(FLOW, f"flow{number}"))

    def fire(self, _number: int) -> None:
        due = [name for name, at_s in self.timers.items() if at_s <= self.now_s]
        for name in due:
            if self.timers.pop(name, None) is not None:
                self.tell(TimerFired(TimerId(name)))


if __name__ == "__main__":
    for seed in range(4):
        script = Script(seed)
        script.run(1500)
        script.core.validate()
        print("\n".join(script.lines))
