"""What a job's history tells, and what it must not."""

from __future__ import annotations

import math

from maestroctl.predict.history import EndedStage, HistorySnapshot, JobHistory


def ended(
    role: str,
    tokens: int | None,
    *,
    step: str = "",
    tools: int = 1,
    tool: bool | None = None,
) -> EndedStage:
    return EndedStage(role, step, 10, tokens, tools, tool, prompt_tail=f"from {role}")


def test_an_empty_history_knows_no_length() -> None:
    snapshot = JobHistory().snapshot("agent", "", "hello")
    assert math.isnan(snapshot.last_1)
    assert math.isnan(snapshot.role_mean)
    assert snapshot.num_stages == 0


def test_the_opening_prompt_is_the_first_text_even_before_it_ended() -> None:
    history = JobHistory()
    assert history.snapshot("a", "", "the task").first_tail == "the task"
    history.add(EndedStage("a", "", 10, 5, 0, None, "the task"))
    assert history.snapshot("a", "", "later").first_tail == "the task"


def test_lengths_are_kept_by_role_and_step_newest_first() -> None:
    history = JobHistory()
    for role, tokens in (("a", 1), ("b", 10), ("a", 100)):
        history.add(ended(role, tokens))
    snapshot = history.snapshot("a", "")
    assert snapshot.last_1 == math.log1p(100)
    assert snapshot.role_last_2 == math.log1p(1)
    assert snapshot.role_count == 2
    assert snapshot.roles_seen == 2


def test_an_unknown_length_counts_as_a_stage_but_not_as_a_length() -> None:
    history = JobHistory()
    history.add(ended("a", None))
    snapshot = history.snapshot("a", "")
    assert snapshot.num_stages == 1
    assert snapshot.role_count == 0


def test_the_run_of_a_step_starts_again_when_another_step_comes() -> None:
    history = JobHistory()
    for step in ("plan", "plan", "code", "plan"):
        history.add(ended("a", 3, step=step))
    assert history.snapshot("a", "plan").step_run == 1
    assert history.snapshot("a", "code").step_run == 0


def test_a_loop_that_asks_the_same_again_is_noticed() -> None:
    history = JobHistory()
    history.add(ended("a", 3))
    assert history.snapshot("a", "", "from a").same_prompt
    assert not history.snapshot("a", "", "something else").same_prompt


def test_tool_share_counts_only_stages_where_it_is_known() -> None:
    history = JobHistory()
    for tool in (True, None, False):
        history.add(ended("a", 3, tool=tool))
    snapshot = history.snapshot("a", "")
    assert snapshot.tool_share == 0.5
    assert snapshot.prev_tool == 0.0


def test_a_stage_without_tools_says_nothing_of_tool_calls() -> None:
    history = JobHistory()
    history.add(ended("a", 3, tools=0, tool=False))
    assert math.isnan(history.snapshot("a", "").tool_share)
    history.add(ended("a", 3, tool=True))
    history.add(ended("a", 3, tools=0, tool=False))
    snapshot = history.snapshot("a", "")
    assert (snapshot.prev_tool, snapshot.tool_share) == (1.0, 1.0)


def test_a_snapshot_survives_the_wire() -> None:
    history = JobHistory()
    history.add(ended("a", 7, tool=True))
    snapshot = history.snapshot("b", "x", "text")
    again = HistorySnapshot.from_json(snapshot.to_json())
    for name in HistorySnapshot.__slots__:
        one, other = getattr(snapshot, name), getattr(again, name)
        assert one == other or (math.isnan(one) and math.isnan(other)), name


def test_memory_does_not_grow_with_the_stages_of_a_job() -> None:
    history = JobHistory()
    for _ in range(5000):
        history.add(ended("a", 3))
    assert len(history._by_role["a"].recent) == 3
    assert len(history._tails) == 1
