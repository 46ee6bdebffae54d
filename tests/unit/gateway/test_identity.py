"""What a request says it belongs to, and which place wins."""

from __future__ import annotations

import json
from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import InvalidRequest
from maestroctl.gateway.identity import Claims, PathClaims, read_claims
from maestroctl.gateway.openai_schema import Api, Body, parse_body


def make_body(**fields: Any) -> Body:
    document = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return parse_body(Api.CHAT, json.dumps(document).encode())


def claims(
    headers: dict[str, str] | None = None, path: PathClaims | None = None, **fields: Any
) -> Claims:
    proxy = CIMultiDictProxy(CIMultiDict(headers or {}))
    return read_claims(proxy, path or PathClaims(), make_body(**fields))


def test_nothing_said_is_nothing_claimed() -> None:
    assert claims() == Claims()


def test_all_six_headers() -> None:
    said = claims(
        {
            "X-Maestro-Job": "j",
            "x-maestro-workflow": "w",
            "X-Maestro-Stage": "plan",
            "X-Maestro-Role": "planner",
            "X-Maestro-Class": "batch",
            "X-Maestro-Deadline": "250ms",
        }
    )
    assert said == Claims("j", "w", "plan", "planner", ServiceClass.BATCH, 0.25)


ALL: dict[str, Any] = {
    "header": {"headers": {"X-Maestro-Job": "header"}},
    "maestro": {"maestro": {"job": "maestro"}},
    "metadata": {"metadata": {"maestro_job": "metadata"}},
    "path": {"path": PathClaims(job="path")},
    "session": {"headers": {"X-Session-ID": "session"}},
    "program": {"program_id": "program"},
}


@pytest.mark.parametrize("winner", ALL)
def test_order_of_precedence(winner: str) -> None:
    names = list(ALL)[list(ALL).index(winner) :]
    merged: dict[str, Any] = {"headers": {}}
    for name in names:
        for key, value in ALL[name].items():
            merged[key] = {**merged["headers"], **value} if key == "headers" else value
    assert claims(**merged).job == winner


def test_each_field_is_taken_on_its_own() -> None:
    said = claims(
        {"X-Maestro-Role": "coder"},
        PathClaims("j", "w"),
        maestro={"class": "batch"},
        metadata={"maestro_deadline": 5},
    )
    assert said == Claims("j", "w", "", "coder", ServiceClass.BATCH, 5.0)


def test_our_field_is_not_forwarded_and_metadata_is() -> None:
    body = make_body(maestro={"job": "j"}, metadata={"maestro_job": "x", "mine": 1})
    read_claims(CIMultiDictProxy(CIMultiDict()), PathClaims(), body)
    assert "maestro" not in body.fields
    assert json.loads(bytes(body.fields["metadata"])) == {"maestro_job": "x", "mine": 1}


def test_extra_body_sent_as_written_is_understood() -> None:
    body = make_body(extra_body={"maestro": {"job": "j"}, "other": 1})
    assert read_claims(CIMultiDictProxy(CIMultiDict()), PathClaims(), body).job == "j"
    assert body.fields["extra_body"] == {"other": 1}
    body = make_body(extra_body={"other": 1})
    read_claims(CIMultiDictProxy(CIMultiDict()), PathClaims(), body)
    assert bytes(body.fields["extra_body"]) == b'{"other": 1}'


@pytest.mark.parametrize("job", ["a/b", "a b", "äöü", "作业", "../../etc", "a:b", 17])
def test_job_names_are_free(job: Any) -> None:
    assert claims(maestro={"job": job}).job == str(job)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"maestro": {"job": ["x"]}}, "maestro.job"),
        ({"maestro": {"job": True}}, "maestro.job"),
        ({"maestro": {"job": "x" * 257}}, "maestro.job"),
        ({"maestro": {"job": "a\r\nSet-Cookie: b"}}, "maestro.job"),
        ({"maestro": {"role": "a\u2028b"}}, "maestro.role"),
        ({"maestro": {"class": "urgent"}}, "maestro.class"),
        ({"maestro": {"class": {}}}, "maestro.class"),
        ({"maestro": {"deadline": "soon"}}, "maestro.deadline"),
        ({"maestro": {"deadline": 0}}, "maestro.deadline"),
        ({"maestro": {"deadline": -1}}, "maestro.deadline"),
        ({"maestro": {"deadline": 10**400}}, "maestro.deadline"),
        ({"metadata": {"maestro_class": "x"}}, "metadata.maestro_class"),
        ({"extra_body": {"maestro": 1}}, "extra_body.maestro"),
    ],
    ids=str,
)
def test_unusable_claim_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        claims(**fields)
    assert caught.value.param == param


def test_broken_unicode_in_a_header_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        claims({"X-Maestro-Job": "a\udcff"})


def test_odd_program_id_is_none_of_ours() -> None:
    assert claims(program_id={"a": 1}).job is None
    assert claims(program_id=7).job == "7"
