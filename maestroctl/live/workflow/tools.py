"""Runs the tools that models ask for: Python functions and HTTP endpoints.

A workflow file is data, so what it may reach is decided elsewhere: a tool is found only if a
pattern of ``[tools] allow`` in the fleet file covers it. A pattern with a wildcard reaches only
functions that the module itself defines or lists in ``__all__``: ``mytools:*`` must not reach
what mytools happens to import.

Whatever goes wrong inside a call is an answer to the model, not a failure of the job: the model may
try other arguments or go on without. Arguments are checked by the tool's schema first. A plain
function runs in a thread of its own; one that exceeds its time limit is left behind there, because
Python cannot stop a thread, and its result is dropped.

Tools run *at least* once: after a crash the step runs again, with the same idempotency keys
(job/step/visit/item/round/index). A function gets the key if it takes ``idempotency_key``, an
endpoint gets it as the header ``Idempotency-Key``.

See also: `config.tool_schema`, `config.workflow_names` (the same allow-list, offline).
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import aiohttp

from maestroctl.config.tool_schema import find_argument_mistake
from maestroctl.config.workflow_names import tool_target
from maestroctl.domain.workflow import ToolSpec
from maestroctl.errors import ConfigError
from maestroctl.live.workflow.sse import ToolCallRequest

MAX_RESULT = 64 << 10
"""Characters of a result that a model gets to see."""
MAX_RESPONSE_BYTES = 1 << 20
"""Of an HTTP tool; what lies beyond is not read."""
MAX_THREADS = 32
"""Functions that run at once, over all jobs."""

_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave. `text` goes to the model as it is; an error says so in it."""

    text: str
    is_error: bool = False


class ToolSet:
    """The tools of one job, found and allowed.

    Args:
        tools: declared by the workflow.
        allow: patterns of the fleet.

    Raises:
        ConfigError: a tool is not allowed, or its function cannot be found.
    """

    def __init__(self, tools: Iterable[ToolSpec], allow: tuple[str, ...]) -> None:
        self._specs = {tool.name: tool for tool in tools}
        self._functions = {
            tool.name: _find_function(tool, allow)
            for tool in self._specs.values()
            if tool.function is not None
        }
        for tool in self._specs.values():
            if not _patterns_for(tool, allow):
                raise _not_allowed(tool)

    def spec(self, name: str) -> ToolSpec | None:
        """The declared tool of this name."""
        return self._specs.get(name)

    def function(self, name: str) -> Callable[..., Any] | None:
        """The callable of a function tool."""
        return self._functions.get(name)


class ToolRunner:
    """Runs single calls. One per coordinator; close it with `aclose`."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._threads = asyncio.Semaphore(MAX_THREADS)

    async def run(
        self,
        tools: ToolSet,
        offered: tuple[str, ...],
        call: ToolCallRequest,
        idempotency_key: str,
    ) -> ToolResult:
        """Carry out what a model asked for.

        Args:
            tools: of the job.
            offered: names the step offers; the model may not call others.
            call: as the model wrote it.
            idempotency_key: the same for the same call after a restart.

        Returns:
            The result, or an error for the model to read; never raises for what the tool does.
        """
        spec = tools.spec(call.name)
        if spec is None or call.name not in offered:
            return _error(f"there is no tool {call.name!r}; there are: {', '.join(offered)}")
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError) as exc:
            return _error(f"the arguments are not JSON: {exc}")
        mistake = find_argument_mistake(spec.parameters, arguments)
        if mistake is None and not isinstance(arguments, dict):
            mistake = "the arguments must be an object"
        if mistake is not None:
            return _error(f"the arguments do not fit: {mistake}")
        try:
            async with asyncio.timeout(spec.timeout_s):
                function = tools.function(call.name)
                if function is not None:
                    return ToolResult(
                        result_text(await self._call(function, arguments, idempotency_key))
                    )
                return await self._post(spec, arguments, idempotency_key)
        except TimeoutError:
            return _error(f"it took longer than {spec.timeout_s:g} s")
        # What a tool raises is the tool's business; the model reads it and goes on.
        except Exception as exc:
            return _error(f"{type(exc).__name__}: {exc}")

    async def aclose(self) -> None:
        """Close the HTTP session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], key: str
    ) -> Any:
        keywords = dict(arguments)
        if _takes_key(function):
            keywords["idempotency_key"] = key
        if inspect.iscoroutinefunction(function):
            return await function(**keywords)
        async with self._threads:
            result = await _run_in_thread(lambda: function(**keywords))
        return await result if inspect.isawaitable(result) else result

    async def _post(self, spec: ToolSpec, arguments: Mapping[str, Any], key: str) -> ToolResult:
        assert spec.url is not None, "a tool is a function or a url"
        if self._session is None:
            self._session = aiohttp.ClientSession()
        # A redirect could lead to a place that no pattern allows.
        async with self._session.post(
            spec.url,
            json=dict(arguments),
            headers={"Idempotency-Key": key},
            allow_redirects=False,
        ) as response:
            raw = await _read_at_most(response.content, MAX_RESPONSE_BYTES)
            text = raw.decode(response.charset or "utf-8", "replace")
            if response.status >= 300:
                return _error(f"the endpoint answered {response.status}: {text[:500]}")
            return ToolResult(_cut(text))


async def _read_at_most(stream: aiohttp.StreamReader, limit: int) -> bytes:
    """The first `limit` bytes; the connection is closed by the caller, so nothing is left over."""
    parts: list[bytes] = []
    left = limit
    while left > 0 and (part := await stream.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def result_text(value: Any) -> str:
    """A result as a model reads it: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return _cut(value)
    return _cut(json.dumps(value, ensure_ascii=False, default=str))


def _cut(text: str) -> str:
    if len(text) <= MAX_RESULT:
        return text
    return f"{text[:MAX_RESULT]}\n[cut: {len(text)} characters in all]"


def _error(message: str) -> ToolResult:
    return ToolResult(_cut(json.dumps({"error": message}, ensure_ascii=False)), is_error=True)


async def _run_in_thread(function: Callable[[], Any]) -> Any:
    """Run it in a daemon thread: one that never ends must not keep the process from exiting."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def work() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        # SystemExit included: a tool must not end a thread without an answer.
        except BaseException as exc:
            error = exc if isinstance(exc, Exception) else RuntimeError(f"{type(exc).__name__}")
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop is gone, and with it whoever asked

    threading.Thread(target=work, name="maestroctl-tool", daemon=True).start()
    return await done


# --- finding functions --------------------------------------------------------------------------


def _patterns_for(tool: ToolSpec, allow: tuple[str, ...]) -> list[str]:
    return [pattern for pattern in allow if fnmatchcase(tool_target(tool), pattern)]


def _not_allowed(tool: ToolSpec) -> ConfigError:
    target = tool_target(tool)
    return ConfigError(
        f"the fleet does not allow {target!r}",
        key=f"tool.{tool.name}",
        hint=f'add "{target}" to allow under [tools] of the fleet file',
    )


def _find_function(tool: ToolSpec, allow: tuple[str, ...]) -> Callable[..., Any]:
    """Import it. Nothing is imported that is not allowed."""
    patterns = _patterns_for(tool, allow)
    if not patterns:
        raise _not_allowed(tool)
    module_name, _, name = (tool.function or "").partition(":")
    key = f"tool.{tool.name}.function"
    try:
        module = importlib.import_module(module_name)
    # Importing runs the module, so anything can come out of it.
    except Exception as exc:
        raise ConfigError(
            f"module {module_name!r} cannot be imported: {exc}",
            key=key,
            hint="install it where the coordinator runs, or set PYTHONPATH",
        ) from exc
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"module {module_name!r} has no function {name!r}", key=key)
    own = getattr(function, "__module__", None) == module.__name__
    is_public = own or name in getattr(module, "__all__", ())
    if not is_public and all(_WILDCARDS & set(pattern) for pattern in patterns):
        raise ConfigError(
            f"{module_name!r} only imports {name!r}, and a wildcard does not reach that",
            key=key,
            hint=f'allow "{tool.function}" by its full name',
        )
    return function  # type: ignore[no-any-return]


def _takes_key(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return "idempotency_key" in parameters
