"""What several nodes answer to one request by hand, said as one."""

from __future__ import annotations

import pytest

from maestroctl.domain.ids import NodeName
from maestroctl.domain.messages import ActionAnswer
from maestroctl.live.coordinator.control import join_answers

DONE = ActionAnswer()
STOPPED = ActionAnswer(note="is stopped")
FAILED = ActionAnswer("no room")


@pytest.mark.parametrize(
    ("answers", "joined"),
    [
        ([DONE], DONE),
        ([STOPPED], STOPPED),
        ([FAILED], FAILED),
        ([DONE, STOPPED], DONE),
        ([STOPPED, STOPPED], ActionAnswer(note="is stopped (n1), is stopped (n2)")),
        ([DONE, FAILED], ActionAnswer("no room (n2)")),
        ([FAILED, FAILED], ActionAnswer("no room (n1); no room (n2)")),
    ],
)
def test_a_note_says_that_no_node_had_anything_to_do(
    answers: list[ActionAnswer], joined: ActionAnswer
) -> None:
    by_node = {NodeName(f"n{number}"): answer for number, answer in enumerate(answers, start=1)}
    assert join_answers(by_node) == joined
