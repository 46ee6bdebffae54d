"""The two workflows of the demo. Texts are short, since a small model on two cores writes them."""

from __future__ import annotations

from maestroctl.config.workflow import parse_workflow
from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.workflow import WorkflowSpec

QUESTIONS = ("Why does bread rise?", "Why is the sky blue?")
"""Inputs of the interactive workflow, one run each."""

NOTES = (
    "Printer on floor two is out of paper again.",
    "The new tea in the kitchen is very popular.",
    "Fire drill on Friday at ten, use the back stairs.",
)
"""Input of the batch workflow."""

ANSWER = """\
[workflow]
name = "answer"
class = "interactive"

[[step]]
name = "plan"
role = "planner"
models = ["scout"]
prompt = "Name two points that answer the question: {{ input }}"
max_tokens = 32
options = { temperature = 0 }

[[step]]
name = "draft"
role = "writer"
models = ["writer"]
after = ["plan"]
prompt = "Answer in two sentences: {{ input }}\\nUse these points: {{ steps.plan.output }}"
max_tokens = 48
options = { temperature = 0 }

[[step]]
name = "review"
role = "reviewer"
models = ["critic"]
after = ["draft"]
prompt = \"\"\"
Question: {{ input }}
Answer: {{ steps.draft.output }}
Say APPROVED if the answer is good, else what is missing.\"\"\"
max_tokens = 16
options = { temperature = 0 }
repeat = { back_to = "draft", until = "'APPROVED' in output", at_most = ROUNDS }
"""

DIGEST = """\
[workflow]
name = "digest"
class = "batch"
output = "digest"

[[step]]
name = "note"
role = "worker"
models = ["scout"]
for_each = "{{ input }}"
prompt = "Say in five words what this is about: {{ item }}"
max_tokens = 16
options = { temperature = 0 }

[[step]]
name = "digest"
role = "writer"
models = ["writer"]
after = ["note"]
prompt = "Write one paragraph of office news from this:\\n{{ steps.note.output }}"
max_tokens = 48
options = { temperature = 0 }

[[step]]
name = "check"
role = "critic"
models = ["critic"]
after = ["digest"]
prompt = "Is this friendly? Say APPROVED or say what to change:\\n{{ steps.digest.output }}"
max_tokens = 16
options = { temperature = 0 }
repeat = { back_to = "digest", until = "'APPROVED' in output", at_most = ROUNDS }
"""


def answer_workflow(fleet: FleetSpec, *, rounds: int) -> WorkflowSpec:
    """Plan, draft, review; somebody waits for it.

    Args:
        rounds: drafts at most.
    """
    return _parse(ANSWER, "answer.toml", fleet, rounds)


def digest_workflow(fleet: FleetSpec, *, rounds: int) -> WorkflowSpec:
    """Notes side by side, a digest of them, a check; it takes what is left."""
    return _parse(DIGEST, "digest.toml", fleet, rounds)


def _parse(text: str, file: str, fleet: FleetSpec, rounds: int) -> WorkflowSpec:
    return parse_workflow(text.replace("ROUNDS", str(rounds)), file=file, fleet=fleet)
