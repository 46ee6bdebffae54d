"""Tools: what may be reached, and that nothing a tool does harms the job."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from maestroctl.domain.workflow import ToolSpec
from maestroctl.errors import ConfigError
from maestroctl.live.workflow.sse import ToolCallRequest
from maestroctl.live.workflow.tools import MAX_RESULT, ToolResult, ToolRunner, ToolSet
from tests.unit.live.workflow import tool_samples

MODULE = tool_samples.__name__


@pytest.fixture
async def runner() -> AsyncIterator[ToolRunner]:
    runner = ToolRunner()
    yield runner
    await runner.aclose()


async def call(
    runner: ToolRunner, spec: ToolSpec, arguments: object = None, *, allow: str = f"{MODULE}:*"
) -> ToolResult:
    tools = ToolSet([spec], (allow,))
    text = "" if arguments is None else json.dumps(arguments)
    return await runner.run(
        tools, (spec.name,), ToolCallRequest("id", spec.name, text), "j/s/1/0/0/0"
    )


def function(name: str, **fields: object) -> ToolSpec:
    return ToolSpec(name, function=f"{MODULE}:{name}", **fields)  # type: ignore[arg-type]


# --- functions ----------------------------------------------------------------------------------


async def test_plain_function_runs_in_a_thread_and_gets_the_key(runner: ToolRunner) -> None:
    assert await call(runner, function("where")) == ToolResult("j/s/1/0/0/0 True")


async def test_async_function_is_awaited(runner: ToolRunner) -> None:
    assert await call(runner, function("later"), {"value": 4}) == ToolResult('{"value": 4}')


@pytest.mark.parametrize(
    ("name", "arguments", "part"),
    [
        ("boom", None, "RuntimeError: the disk is on fire"),
        ("leave", None, "SystemExit"),
        ("later", {"wrong": 1}, "TypeError"),
    ],
)
async def test_error_of_a_tool_is_an_answer(
    runner: ToolRunner, name: str, arguments: object, part: str
) -> None:
    result = await call(runner, function(name), arguments)
    assert result.is_error
    assert part in json.loads(result.text)["error"]


async def test_tool_that_takes_too_long_is_left_behind(runner: ToolRunner) -> None:
    tool_samples.RELEASE.clear()
    result = await call(runner, function("stuck", timeout_s=0.05))
    tool_samples.RELEASE.set()
    assert result.is_error
    assert "longer than 0.05 s" in result.text
    assert tool_samples.ENTERED.is_set()


async def test_long_result_is_cut(runner: ToolRunner) -> None:
    result = await call(runner, function("huge"))
    assert result.text.startswith("x" * MAX_RESULT + "\n[cut: 100000")


async def test_result_that_is_no_json_is_still_text(runner: ToolRunner) -> None:
    result = await call(runner, function("odd"))
    assert not result.is_error
    assert "1, 2" in result.text


async def test_tool_the_step_does_not_offer_is_not_run(runner: ToolRunner) -> None:
    tools = ToolSet([function("boom"), function("where")], (f"{MODULE}:*",))
    result = await runner.run(tools, ("where",), ToolCallRequest("id", "boom", ""), "key")
    assert "there is no tool 'boom'; there are: where" in json.loads(result.text)["error"]


# --- what may be reached ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "allow", "part"),
    [
        (f"{MODULE}:where", "other:*", "does not allow"),
        (f"{MODULE}:borrowed", f"{MODULE}:*", "a wildcard does not reach that"),
        (f"{MODULE}:json", f"{MODULE}:*", "has no function"),
        ("no_such_module_here:f", "no_such_module_here:*", "cannot be imported"),
        ("os:system", f"{MODULE}:*", "does not allow"),
    ],
)
def test_function_out_of_reach_is_refused_before_anything_starts(
    target: str, allow: str, part: str
) -> None:
    with pytest.raises(ConfigError, match=part):
        ToolSet([ToolSpec("t", function=target)], (allow,))


def test_full_name_reaches_what_the_module_imports() -> None:
    target = f"{MODULE}:borrowed"
    assert ToolSet([ToolSpec("t", function=target)], (target,)).function("t") is not None


def test_url_must_be_covered_by_a_pattern() -> None:
    tool = ToolSpec("t", url="http://127.0.0.1:9/admin")
    with pytest.raises(ConfigError, match="does not allow"):
        ToolSet([tool], ("http://127.0.0.1:9/tools/*",))


# --- HTTP ---------------------------------------------------------------------------------------


@pytest.fixture
async def endpoint() -> AsyncIterator[str]:
    async def echo(request: web.Request) -> web.Response:
        key = request.headers["Idempotency-Key"]
        return web.json_response({"got": await request.json(), "key": key})

    async def away(_: web.Request) -> web.Response:
        raise web.HTTPFound("/echo")

    async def bad(_: web.Request) -> web.Response:
        return web.Response(status=500, text="no")

    async def big(_: web.Request) -> web.Response:
        return web.Response(body=b"y" * (3 << 20))

    app = web.Application()
    app.add_routes([web.post(f"/{f.__name__}", f) for f in (echo, away, bad, big)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


async def test_endpoint_gets_arguments_and_key(runner: ToolRunner, endpoint: str) -> None:
    tool = ToolSpec("echo", url=f"{endpoint}/echo")
    result = await call(runner, tool, {"a": 1}, allow=f"{endpoint}/*")
    assert json.loads(result.text) == {"got": {"a": 1}, "key": "j/s/1/0/0/0"}


@pytest.mark.parametrize(("path", "part"), [("away", "answered 302"), ("bad", "answered 500: no")])
async def test_anything_but_success_is_an_error(
    runner: ToolRunner, endpoint: str, path: str, part: str
) -> None:
    result = await call(runner, ToolSpec("t", url=f"{endpoint}/{path}"), allow=f"{endpoint}/*")
    assert result.is_error
    assert part in result.text


async def test_large_response_is_not_read_whole(runner: ToolRunner, endpoint: str) -> None:
    result = await call(runner, ToolSpec("t", url=f"{endpoint}/big"), allow=f"{endpoint}/*")
    assert len(result.text) < MAX_RESULT + 100


async def test_endpoint_that_is_not_there_is_an_answer(runner: ToolRunner) -> None:
    result = await call(runner, ToolSpec("t", url="http://127.0.0.1:1/x"), allow="http://*")
    assert result.is_error
