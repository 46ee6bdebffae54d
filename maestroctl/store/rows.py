"""What the store keeps: one frozen row type per table, and nothing that touches a database.

All times are Unix seconds (wall clock), because they outlive the process; the cores' monotonic
times are converted by the host. Fields named ``..._json`` hold JSON text. A row is identified by
its key fields; writing a row with a known key replaces the older one whole.

=================  ===============================  ===============================
row                key                              may be dropped by a slow disk
=================  ===============================  ===============================
`JobRow`           job_id                           never
`StepResultRow`    job_id, step, visit, item        never
`StageAttemptRow`  stage_id, attempt                never
`ObservationRow`   stage_id                         yes, counted
`DecisionRow`      none: each write adds a record   yes, counted
`MetaRow`          key                              never
=================  ===============================  ===============================
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.records import DecisionRecord
from maestroctl.domain.stage import ServiceClass


@dataclass(frozen=True, slots=True)
class JobRow:
    """One run of a workflow, or one plain request (`external`, a job of one stage).

    Attributes:
        job_id: unique over the life of the database.
        workflow: its name; empty for a plain request.
        workflow_json: the whole declaration, so that a resumed job does not need its file;
            empty for a plain request.
        input_json: the input as JSON text, ``null`` when there is none.
        variables_json: template variables given at submission, a JSON object.
        deadline_s: seconds from submission; None = none.
        status: `JobStatus`.
        reason: for people, why it ended as it did.
        output: text of the job's output step; None until it is finished.
        submitted_at: Unix seconds.
        finished_at: Unix seconds; None while it runs.
        external: its caller waits on an open connection, so it dies with this process.
    """

    job_id: str
    submitted_at: float
    workflow: str = ""
    workflow_json: str = ""
    input_json: str = "null"
    variables_json: str = "{}"
    service_class: ServiceClass = ServiceClass.BATCH
    deadline_s: float | None = None
    status: JobStatus = JobStatus.RUNNING
    reason: str = ""
    output: str | None = None
    finished_at: float | None = None
    external: bool = False


@dataclass(frozen=True, slots=True)
class StepResultRow:
    """One finished run of a step: what a job resumes from after a restart.

    Attributes:
        visit: loop round, from 1. item: fan-out item, from 0.
        num_items: fan-out width decided when the step was prepared (1 without ``for_each``).
        output: text that templates of later steps read.
        repeat: its ``until`` did not hold: go back.
    """

    job_id: str
    step: str
    visit: int
    item: int
    num_items: int
    output: str
    finished_at: float
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class StageAttemptRow:
    """One try of one LLM call on one node. A stage that never reached a node has attempt 0.

    Attributes:
        outcome: None while it is open.
        arrived_at: when the stage became ready; the same for all its attempts.
        dispatched_at: sent to the node; None = never.
        first_byte_at: first byte of the answer; None = none came.
        ended_at: None while it is open.
        prompt_tokens, output_tokens, cached_tokens: exact, from the engine; None = never said.
        activation: what the stage waited for on the node: ``""``, ``"wake"`` or ``"start"``.
        activation_s: seconds of that.
        streamed: the answer came token by token; else `first_byte_at` is when it was complete.
    """

    stage_id: str
    job_id: str
    attempt: int
    arrived_at: float
    step: str = ""
    role: str = ""
    model: str = ""
    node: str = ""
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    outcome: Outcome | None = None
    reason: str = ""
    dispatched_at: float | None = None
    first_byte_at: float | None = None
    ended_at: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    activation: str = ""
    activation_s: float = 0.0
    streamed: bool = True


@dataclass(frozen=True, slots=True)
class ObservationRow:
    """What was predicted for a stage and what came of it; the predictors learn from these.

    Attributes:
        at: when the stage ended.
        features_json: the stage's descriptor as JSON, without any text of the prompt.
        predicted_q50, predicted_q90: output tokens. predicted_p_tool: probability of a tool call.
        source: where the prediction came from (`Prediction.source`).
        output_tokens: exact, or what had come when a censored stage was cut.
        tool_called: the answer asked for a tool; None = not known, it was cut before its end.
        censored: cut off or cancelled: the true length is at least `output_tokens`.
    """

    stage_id: str
    at: float
    workflow: str
    step: str
    role: str
    model: str
    features_json: str
    predicted_q50: float
    predicted_q90: float
    predicted_p_tool: float
    source: str
    output_tokens: int
    tool_called: bool | None = None
    censored: bool = False


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision of a core. `detail_json` holds candidates, counts and input age."""

    at: float
    kind: str
    subject: str
    choice: str
    reason: str
    detail_json: str = "{}"


@dataclass(frozen=True, slots=True)
class MetaRow:
    """A single named value. Keys ``schema_version`` and ``epoch`` belong to the store itself."""

    key: str
    value: str


Row = JobRow | StepResultRow | StageAttemptRow | ObservationRow | DecisionRow | MetaRow

_ENCODER = msgspec.json.Encoder(enc_hook=dict)
"""`dict` for the read-only mappings that frozen records may hold."""


def decision_row(record: DecisionRecord, at: float) -> DecisionRow:
    """The row of a core's record.

    Args:
        record: as the core made it; its `at_s` is in the core's time.
        at: the same instant in Unix seconds.
    """
    detail = {
        "candidates": record.candidates,
        "rejected_counts": record.rejected_counts,
        "input_age_s": record.input_age_s,
    }
    text = _ENCODER.encode(detail).decode()
    return DecisionRow(at, record.kind, record.subject, record.choice, record.reason, text)
