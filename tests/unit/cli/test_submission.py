"""From the words of `submit` to a request that the gateway takes."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from maestroctl.cli.runtime import make_output_folder, read_text_argument
from maestroctl.cli.submission import Submission, check_input, read_batch, read_submission
from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import ConfigError, ConfigErrors
from maestroctl.gateway.jobs_api import parse_job

WORKFLOW = """
[workflow]
name = "w"
class = "batch"

[variables]
tone = "dry"
count = 2
tags = ["a"]

[[tool]]
name = "search"
function = "mytools:search"

[[step]]
name = "a"
tools = ["search"]
prompt = "{{ input }} {{ vars.tone }} {{ vars.count }} {{ vars.tags }}"
options = { temperature = 0.5 }

[[step]]
name = "b"
after = ["a"]
prompt = "{{ steps.a.output }}"
repeat = { back_to = "a", until = "'OK' in output", at_most = 2 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "w.toml"
    path.write_text(WORKFLOW)
    return path


def read(file: Path, **options: Any) -> Submission:
    words: dict[str, Any] = {
        "input_text": "x",
        "assignments": (),
        "service_class": None,
        "deadline": None,
    }
    return read_submission(file, **{**words, **options})


def test_gateway_reads_back_what_was_meant(file: Path) -> None:
    run = read(
        file,
        assignments=["tone=warm=er", "count=3", 'tags=["b", "c"]'],
        service_class=ServiceClass.INTERACTIVE,
        deadline="90s",
    )
    request = parse_job(json.loads(json.dumps(run.body())))
    assert request.workflow == run.workflow
    assert request.input == "x"
    assert request.variables == {"tone": "warm=er", "count": 3, "tags": ["b", "c"]}
    assert request.service_class is ServiceClass.INTERACTIVE
    assert request.deadline_s == 90.0


def test_what_is_not_said_is_left_to_the_file(file: Path) -> None:
    assert read(file, input_text=None).body().keys() == {"workflow", "variables"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"assignments": ["tone"]}, "not NAME=VALUE"),
        ({"assignments": ["=x"]}, "not NAME=VALUE"),
        ({"assignments": ["ton=x"]}, "no variable 'ton'"),
        ({"assignments": ["count=three"]}, "not JSON"),
        ({"deadline": "soon"}, "--deadline"),
        ({"deadline": "0s"}, "more than 0"),
        ({"deadline": "-5"}, "--deadline"),
        ({"input_text": "@/nowhere/at/all"}, "cannot read"),
    ],
    ids=str,
)
def test_wrong_option_is_refused(file: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(file, **options)


def test_misspelt_variable_names_the_nearest(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(file, assignments=["ton=x"])
    assert caught.value.hint == "did you mean 'tone'?"


def test_variable_may_come_from_a_file(file: Path, tmp_path: Path) -> None:
    (tmp_path / "tone.txt").write_text("very dry")
    run = read(file, assignments=[f"tone=@{tmp_path / 'tone.txt'}"])
    assert run.variables == {"tone": "very dry"}


def test_run_without_its_input_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="needs an input"):
        check_input(read(file, input_text=None), file)
    check_input(read(file), file)


def test_every_line_of_a_batch_is_a_run(file: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "in.jsonl"
    lines = [
        '"one"',
        "",
        '{"input": {"a": 1}, "vars": {"tone": "warm"}, "id": 7}',
        '{"input": "two", "other": 1}',
        "[1, 2]",
    ]
    inputs.write_text("\n".join(lines))
    runs = read_batch(str(inputs), read(file, input_text=None, assignments=["count=5"]))
    assert [run.input for run in runs] == ["one", {"a": 1}, {"input": "two", "other": 1}, [1, 2]]
    assert runs[1].variables == {"count": 5, "tone": "warm"}
    assert [run.label for run in runs] == [None, "7", None, None]


def test_every_wrong_line_of_a_batch_is_named(file: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "in.jsonl"
    lines = ['"good"', "{bad", '{"input": 1, "vars": {"ton": 1}}', '{"input": 1, "vars": 3}']
    inputs.write_text("\n".join(lines))
    with pytest.raises(ConfigErrors) as caught:
        read_batch(str(inputs), read(file, input_text=None))
    assert [error.line for error in caught.value.errors] == [2, 3, 4]


def test_empty_batch_is_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match="no line"):
        read_batch(str(tmp_path / "in.jsonl"), read(file, input_text=None))


def test_misspelt_key_beside_the_input_of_a_batch_is_refused(file: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "in.jsonl"
    inputs.write_text('{"input": "x", "vra": {"count": 3}}\n')
    with pytest.raises(ConfigErrors) as caught:
        read_batch(str(inputs), read(file, input_text=None))
    (error,) = caught.value.errors
    assert error.line == 1
    assert "vra" in error.message
    assert "vars" in error.message


@pytest.mark.parametrize("how", ["text", "file", "stdin"])
def test_input_that_is_not_utf8_is_refused_before_it_is_sent(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    value = {"text": os.fsdecode(b"\xff\xfe"), "file": f"@{tmp_path / 'raw'}", "stdin": "-"}[how]
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        read_text_argument(value)


def test_a_missing_input_file_is_named_without_codes_of_the_system() -> None:
    with pytest.raises(ConfigError, match=r"^cannot read /none: No such file or directory$"):
        read_text_argument("@/none")


def test_an_output_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    make_output_folder(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write to the folder"):
        make_output_folder(tmp_path / "file" / "out")
