"""Which requests continue which job."""

from __future__ import annotations

from maestroctl.domain.ids import JobId
from maestroctl.gateway.conversation import Conversation, Turn
from maestroctl.gateway.joining import Chain, JobJoiner

A, B = JobId("a"), JobId("b")


def user(text: str) -> Turn:
    return Turn("user", text)


def ours(text: str, *ids: str) -> Turn:
    return Turn("assistant", text, ids=ids)


def note(
    joiner: JobJoiner,
    job: JobId,
    asked: list[Turn],
    answer: Turn,
    *,
    scope: int = 1,
    at_s: float = 0,
) -> None:
    joiner.note(scope, Chain(scope, asked).last, job, [answer], at_s)


def find(joiner: JobJoiner, turns: list[Turn], *, scope: int = 1, at_s: float = 1) -> JobId | None:
    return joiner.find(Chain(scope, turns), Conversation("", turns), at_s)


def test_request_that_extends_an_answer_joins_its_job() -> None:
    joiner = JobJoiner()
    note(joiner, A, [user("q")], ours("r"))
    assert find(joiner, [user("q"), ours("r"), user("more")]) == A
    assert find(joiner, [user("q"), ours(" r\n"), user("more")]) == A


def test_request_without_our_reply_is_a_new_job() -> None:
    joiner = JobJoiner()
    note(joiner, A, [user("q")], ours("r"))
    assert find(joiner, [user("q")]) is None
    assert find(joiner, [user("q"), ours("another"), user("more")]) is None
    assert find(joiner, [user("x"), ours("r"), user("more")]) is None


def test_longest_match_wins() -> None:
    joiner = JobJoiner()
    note(joiner, A, [user("q")], ours("r"))
    note(joiner, B, [user("q"), ours("r"), user("s")], ours("t"))
    assert find(joiner, [user("q"), ours("r"), user("s"), ours("t"), user("u")]) == B
    assert find(joiner, [user("q"), ours("r"), user("other")]) == A


def test_ambiguous_conversation_belongs_to_neither() -> None:
    joiner = JobJoiner()
    note(joiner, A, [user("q")], ours("r"))
    note(joiner, B, [user("q")], ours("r"))
    assert find(joiner, [user("q"), ours("r"), user("more")]) is None


def test_noting_the_same_job_again_is_not_ambiguous() -> None:
    joiner = JobJoiner()
    note(joiner, A, [user("q")], ours("r"))
    note(joiner, A, [user("q")], ours("r"))
    assert find(joiner, [user("q"), ours("r"), user("more")]) == A


def test_tool_call_id_joins_whatever_else_was_rewritten() -> None:
    joiner = JobJoiner()
    note(joiner, A, [user("q")], ours("", "call_7"))
    assert find(joiner, [user("rewritten"), Turn("tool", "result", ids=("call_7",))]) == A


def test_id_that_two_jobs_used_falls_back_to_the_conversation() -> None:
    joiner = JobJoiner()
    note(joiner, A, [user("q")], ours("r", "call_0"))
    note(joiner, B, [user("p")], ours("r", "call_0"))
    assert find(joiner, [user("p"), ours("r", "call_0"), user("m")]) == B
    assert find(joiner, [user("new"), Turn("tool", "x", ids=("call_0",))]) is None


def test_ids_of_two_jobs_in_one_request_fall_back_to_the_conversation() -> None:
    joiner = JobJoiner()
    note(joiner, A, [user("q")], ours("r", "c1"))
    note(joiner, B, [user("p")], ours("r", "c2"))
    assert find(joiner, [user("n"), ours("", "c1"), ours("", "c2")]) is None


def test_keys_never_join_jobs_of_other_keys() -> None:
    joiner = JobJoiner()
    note(joiner, A, [user("q")], ours("r", "c1"), scope=1)
    assert find(joiner, [user("q"), ours("r", "c1"), user("m")], scope=2) is None


def test_after_half_an_hour_it_is_forgotten() -> None:
    joiner = JobJoiner()
    note(joiner, A, [user("q")], ours("r"), at_s=0)
    turns = [user("q"), ours("r"), user("m")]
    assert find(joiner, turns, at_s=1799) == A
    assert find(joiner, turns, at_s=1801) is None


def test_forgotten_job_does_not_make_a_new_one_ambiguous() -> None:
    joiner = JobJoiner()
    note(joiner, A, [user("q")], ours("r"), at_s=0)
    note(joiner, B, [user("q")], ours("r"), at_s=2000)
    assert find(joiner, [user("q"), ours("r"), user("m")], at_s=2001) == B


def test_memory_is_bounded_and_shrinks() -> None:
    joiner = JobJoiner(max_keys=100)
    for i in range(1000):
        note(joiner, JobId(str(i)), [user(str(i))], ours("r"), at_s=i / 1000)
    assert len(joiner) == 100
    for i in range(60):
        note(joiner, JobId(f"late{i}"), [user(f"late{i}")], ours("r"), at_s=5000)
    assert len(joiner) < 100


def test_two_turn_answer_is_matched_as_a_whole() -> None:
    joiner = JobJoiner()
    answer = [ours("text"), Turn("assistant", calls=(("f", "{}"),), ids=("c9",))]
    joiner.note(1, Chain(1, [user("q")]).last, A, answer, 0)
    assert find(joiner, [user("q"), *answer[:1], user("x")]) is None
    turns = [user("q"), ours("text"), Turn("assistant", calls=(("f", "{ }"),)), user("x")]
    assert find(joiner, turns) == A
