"""Value per byte: what is asked for often, comes back slowly and holds little stays."""

from maestroctl.domain.ids import ModelName
from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.node.residency import ValueResidency
from maestroctl.scheduler.node.victims import VictimPool
from maestroctl.testing.builders import NodeScript


def ranking(script: NodeScript) -> list[str]:
    return [view.model for view in VictimPool(script.core._state).rank(None)]


def use(script: NodeScript, model: str, times: int) -> None:
    for number in range(times):
        script.offer(f"{model}{number}", model)
        script.leave(f"{model}{number}")


def make_script(**fields) -> NodeScript:
    policy = PolicySpec(residency="value", degradation="lru")
    return NodeScript(policy=policy, budget=40 << 30, **fields).awake("a", "b", "c")


def test_model_that_is_asked_for_often_outlives_the_one_used_last():
    script = make_script()
    use(script, "a", 9)
    script.wait(10)
    use(script, "b", 1)
    use(script, "c", 2)
    assert ranking(script) == ["b", "c", "a"]


def test_old_requests_fade():
    script = make_script()
    use(script, "a", 9)
    script.wait(3000)
    use(script, "b", 2)
    use(script, "c", 3)
    assert ranking(script) == ["a", "b", "c"]


def test_slow_to_come_back_is_worth_more_per_byte():
    script = make_script(profiles={"a": {"wake_s": 20.0}})
    for model in ("a", "b", "c"):
        use(script, model, 3)
    assert ranking(script)[-1] == ModelName("a")


def test_ranking_loses_nobody():
    assert ValueResidency().rank_victims([], 0.0) == []
