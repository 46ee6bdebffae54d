"""A recorded job sent as requests gives the rows that training reads of it, column by column.

Both ways in: the gateway's descriptor of an OpenAI request, and the workflow runner's of a step
with tools. Nothing of the serving side is built by hand, and the labels come by the desk.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace

import numpy as np
import pytest

from maestroctl.config import parse_workflow
from maestroctl.domain.ids import JobId, ModelName, NodeName, StageId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.stage import ServiceClass, StageDescriptor
from maestroctl.domain.stage_text import StageText
from maestroctl.gateway.conversation import read_conversation
from maestroctl.gateway.descriptor import (
    JobPositions,
    build_descriptor,
    measure_prompt,
    read_text,
)
from maestroctl.gateway.identity import Claims
from maestroctl.gateway.openai_schema import Api, parse_body
from maestroctl.gateway.submit import JobRequest, StageCall
from maestroctl.live.coordinator.prediction_desk import PredictionDesk
from maestroctl.predict.features import RowBuilder, fit_schema
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.raw_prediction import RawPrediction
from maestroctl.predict.recalibration import OnlineState
from maestroctl.predict.stage_input import StageInput
from maestroctl.predict.traces import UNKNOWN_MODEL, job_from_rows
from maestroctl.scheduler.effects import DispatchStage, ResolveStage
from maestroctl.scheduler.events import StageEnded
from maestroctl.telemetry.exposition import Telemetry
from tests.unit.live.workflow.fake_host import MODEL, FakeHost, Say
from tests.unit.predict.recorded_requests import Row, messages_of, recorded_jobs, request_of

NEVER_SERVED = {
    "depth": "0 in every trace: a constant column, which no tree reads",
}


class Served:
    """A desk with a model process that keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[StageInput] = []
        self._desk = PredictionDesk(OnlineState(), Telemetry(), self)

    async def predict(self, stage: StageInput) -> dict[str, RawPrediction]:
        self.asked.append(stage)
        return {}

    async def run(self, stage: StageDescriptor, text: StageText, row: Row) -> None:
        """One stage from its arrival to its end, which is as recorded."""
        desk, name, model = self._desk, stage.stage_id, stage.candidates[0]
        desk.begin(stage, text)
        await desk.improve(name)
        prompt, output = row["prompt_tokens"], row["output_tokens"]
        node, kind = NodeName("n"), ServiceClass.INTERACTIVE
        desk.dispatched(DispatchStage(name, 1, node, model, 1, 1, prompt, 600, kind, 0.0))
        usage, called = Usage(prompt, output), row["tool_call"]
        desk.ended(StageEnded(name, 1, Outcome.FINISHED, True, usage, tool_called=called))
        desk.resolved(ResolveStage(name, Outcome.FINISHED, "", None))


def through_the_gateway(row: Row, positions: JobPositions) -> tuple[StageDescriptor, StageText]:
    """As `intake` describes the request; its ratio has learned this prompt's exact count."""
    body = parse_body(Api.CHAT, json.dumps(request_of(row)).encode())
    conversation = read_conversation(body)
    text, size = read_text(conversation), measure_prompt(body, conversation)
    claims = Claims(workflow=row["app"], role=row["role"], stage=row.get("phase") or "")
    job = JobId(row["job_id"])
    stage = build_descriptor(
        stage_id=StageId(f"{job}/{row['stage_index']}"),
        job=job,
        claims=claims,
        candidates=(ModelName(row["model"] or UNKNOWN_MODEL),),
        body=body,
        text=text,
        size=size,
        ratio=max(0.0, row["prompt_tokens"] - 0.5) / max(1, size.num_bytes),
        position=positions.count(job, row["role"], 0.0),
        now_s=12.5,
    )
    return stage, text


def assert_same_rows(model: PredictorModel, rows: list[Row], live: list[StageInput]) -> None:
    trained = [stage.seen for stage in job_from_rows(rows).stages]
    dims = dict.fromkeys(("system", "tail", "near", "first"), 8)
    builder = RowBuilder(fit_schema(trained, dims, min_count=1), model.builder.embedder)
    names, wanted, served = builder.schema.names, builder.matrix(trained), builder.matrix(live)
    different = {
        (name, number): (wanted[number, column], served[number, column])
        for column, name in enumerate(names)
        for number in range(len(trained))
        if name not in NEVER_SERVED
        and not np.array_equal(wanted[number, column], served[number, column], equal_nan=True)
    }
    assert different == {}
    assert not wanted[:, names.index("depth")].any()


@pytest.mark.parametrize("rows", recorded_jobs(), ids=lambda rows: rows[0]["source"])
async def test_requests_give_the_rows_of_the_trace(model: PredictorModel, rows: list[Row]) -> None:
    served, positions = Served(), JobPositions()
    for row in rows:
        await served.run(*through_the_gateway(row, positions), row)
    assert_same_rows(model, rows, served.asked)


# --- a step with tools --------------------------------------------------------------------------

TOOLS = """
[workflow]
name = "loop"
roles = ["agent"]
[[tool]]
name = "list_all_product_types"
function = "tests.unit.predict.test_train_serve_parity:list_all_product_types"
[[tool]]
name = "get_product_details"
function = "tests.unit.predict.test_train_serve_parity:get_product_details"
[[step]]
name = "ask"
role = "agent"
tools = ["list_all_product_types", "get_product_details"]
prompt = "{{ input }}"
"""
RESULTS: deque[str] = deque()


def list_all_product_types() -> str:
    return RESULTS.popleft()


def get_product_details(product_id: str) -> str:
    assert product_id
    return RESULTS.popleft()


async def test_a_workflow_step_gives_the_rows_of_the_trace(model: PredictorModel) -> None:
    recorded = next(rows for rows in recorded_jobs() if rows[0]["source"] == "tau_bench_fork")
    own = {"model": MODEL, "app": "loop", "phase": "ask", "tools_available": 2}
    rows = [{**row, **own, "stage_index": number} for number, row in enumerate(recorded[1:4])]
    question, listed, found = (messages_of(row["prompt_tail"]) for row in rows)
    RESULTS.extend((listed[-1]["content"], found[-1]["content"]))
    answers = deque(
        [
            Say(calls=[("list_all_product_types", "{}")]),
            Say(calls=[("get_product_details", '{"product_id": "9523456873"}')]),
            Say("There are ten."),
        ]
    )

    def answer(_: StageCall) -> Say:
        return answers.popleft()

    host = FakeHost(answer, allow_tools=(f"{__name__}:*",))
    workflow = parse_workflow(TOOLS)
    request = JobRequest(workflow, question[0]["content"])
    assert await host.run_job(request) == "There are ten."
    served = Served()
    for call, row in zip(host.stages.calls, rows, strict=True):
        counted = replace(call.stage.prompt_tokens, full=row["prompt_tokens"])
        await served.run(replace(call.stage, prompt_tokens=counted), call.text, row)
    assert_same_rows(model, rows, served.asked)
