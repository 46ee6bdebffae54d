"""The OpenAI endpoints that generate: chat, completions, responses, embeddings.

A request is checked, planned (`text`), submitted (`generation`) and answered by a `Reply`, which is
the sink of its sequence. All of that may happen inside one call when the token interval is zero.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from maestroctl.testing.stub_engine.embeddings import EmbeddingReply
from maestroctl.testing.stub_engine.engine import SEEN_BODY_BYTES, SeenRequest, StubEngine
from maestroctl.testing.stub_engine.errors import send_bad_request, send_error
from maestroctl.testing.stub_engine.generation import Sequence
from maestroctl.testing.stub_engine.http_server import Exchange
from maestroctl.testing.stub_engine.ids import new_id
from maestroctl.testing.stub_engine.reply import Reply
from maestroctl.testing.stub_engine.responses_shape import ResponsesShape, responses_messages
from maestroctl.testing.stub_engine.shapes import ChatShape, CompletionShape, Shape
from maestroctl.testing.stub_engine.text import (
    BadRequest,
    OutputPlan,
    is_token_list,
    plan_chat,
    plan_completion,
)


class OpenAiApi:
    """Handlers of the generating endpoints."""

    def __init__(self, engine: StubEngine) -> None:
        self._engine = engine

    def chat(self, exchange: Exchange) -> None:
        """``POST /v1/chat/completions``"""
        body = self._accept(exchange)
        if body is None:
            return
        try:
            _require_messages(body)
            plan = plan_chat(body, self._engine.limits)
        except BadRequest as error:
            send_bad_request(self._engine, exchange, error)
            return
        request_id = "chatcmpl-" + _base_id(exchange, body)
        shape = ChatShape(
            *self._shape_args(request_id, body, plan),
            **self._usage_args(body),
            tool_name=plan.tool_name,
            tool_call_id="chatcmpl-tool-" + new_id(),
        )
        self._submit(exchange, body, plan, shape, request_id)

    def completion(self, exchange: Exchange) -> None:
        """``POST /v1/completions``"""
        body = self._accept(exchange)
        if body is None:
            return
        try:
            prompt = _single_prompt(body.get("prompt"))
            plan = plan_completion(body, prompt, self._engine.limits)
        except BadRequest as error:
            send_bad_request(self._engine, exchange, error)
            return
        answer_id = "cmpl-" + _base_id(exchange, body)
        shape = CompletionShape(*self._shape_args(answer_id, body, plan), **self._usage_args(body))
        # vLLM numbers the prompts of a request; the engine knows each by such an id.
        self._submit(exchange, body, plan, shape, f"{answer_id}-0")

    def responses(self, exchange: Exchange) -> None:
        """``POST /v1/responses``"""
        body = self._accept(exchange)
        if body is None:
            return
        try:
            chat_body = responses_messages(body)
            plan = plan_chat(chat_body, self._engine.limits)
        except BadRequest as error:
            send_bad_request(self._engine, exchange, error)
            return
        request_id = "resp_" + _base_id(exchange, body)
        shape = ResponsesShape(*self._shape_args(request_id, body, plan), plan.tool_name, body)
        self._submit(exchange, body, plan, shape, request_id)

    def embeddings(self, exchange: Exchange) -> None:
        """``POST /v1/embeddings``: numbers that depend on the text alone."""
        body = self._accept(exchange)
        if body is None:
            return
        request_id = "embd-" + _base_id(exchange, body)
        model = body.get("model") or self._engine.options.served_names[0]
        try:
            reply = EmbeddingReply(exchange, request_id, model, int(time.time()), body)
        except BadRequest as error:
            send_bad_request(self._engine, exchange, error)
            return
        exchange.on_gone = lambda: self._engine.generation.finish(reply.sequence, None)
        self._engine.generation.submit(reply.sequence)

    def _accept(self, exchange: Exchange) -> dict[str, Any] | None:
        """The parsed body of a request that may go on; else it has been answered."""
        engine, request = self._engine, exchange.request
        if len(request.body) <= SEEN_BODY_BYTES:
            engine.seen.append(SeenRequest(request.path, request.headers, request.body))
        if engine.faults.take_first_byte_failure():
            send_error(engine, exchange, 500, "Internal server error", "InternalServerError")
            return None
        try:
            body = json.loads(request.body)
            if not isinstance(body, dict):
                raise BadRequest.invalid("", "Input should be a valid dictionary")
        except ValueError as error:
            send_bad_request(
                engine, exchange, BadRequest.invalid("", f"JSON decode error: {error}")
            )
            return None
        except BadRequest as error:
            send_bad_request(engine, exchange, error)
            return None
        model = body.get("model")
        if model is not None and model not in engine.options.served_names:
            known = ", ".join(engine.options.served_names)
            message = f"The model `{model}` does not exist. Valid aliases: {known}."
            send_error(engine, exchange, 404, message, "NotFoundError", "model")
            return None
        return body

    def _submit(
        self,
        exchange: Exchange,
        body: dict[str, Any],
        plan: OutputPlan,
        shape: Shape,
        request_id: str,
    ) -> None:
        reply = Reply(self._engine, exchange, plan, shape, bool(body.get("stream")))
        sequence = Sequence(
            request_id,
            plan.prompt_tokens,
            len(plan.tokens),
            plan.finish_reason,
            reply,
            _priority(body),
        )
        reply.sequence = sequence
        exchange.on_gone = reply.on_gone
        exchange.on_writable = reply.on_writable
        self._engine.generation.submit(sequence)

    def _shape_args(
        self, answer_id: str, body: dict[str, Any], plan: OutputPlan
    ) -> tuple[str, str, int, int]:
        model = body.get("model") or self._engine.options.served_names[0]
        return answer_id, model, int(time.time()), plan.prompt_tokens

    def _usage_args(self, body: dict[str, Any]) -> dict[str, Any]:
        options = self._engine.options
        asked = body.get("stream_options") or {}
        include = bool(asked.get("include_usage")) or options.force_include_usage
        continuous = bool(asked.get("continuous_usage_stats")) or options.force_include_usage
        return {
            "include_usage": include,
            "continuous": include and continuous and bool(body.get("stream")),
            "null_usage": options.null_usage,
            "fingerprint": f"vllm-{options.version}-stub",
        }


def _base_id(exchange: Exchange, body: dict[str, Any]) -> str:
    given = exchange.request.headers.get("x-request-id") or body.get("request_id")
    return str(given) if given else new_id()


def _priority(body: dict[str, Any]) -> int:
    priority = body.get("priority", 0)
    return priority if isinstance(priority, int) else 0


def _require_messages(body: dict[str, Any]) -> None:
    value = body.get("messages")
    if "messages" not in body:
        raise BadRequest.missing("messages")
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRequest.invalid("messages", "Input should be a valid list")


def _single_prompt(prompt: Any) -> str:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if is_token_list(prompt):
        return "".join(f"{token % 10000:4d}" for token in prompt)
    if isinstance(prompt, list) and len(prompt) > 1:
        raise BadRequest("the stub engine takes one prompt per request", "prompt")
    raise BadRequest.missing("prompt")


Handlers = dict[tuple[str, str], Callable[[Exchange], None]]


def openai_handlers(engine: StubEngine) -> Handlers:
    """The generating endpoints, by method and path."""
    api = OpenAiApi(engine)
    return {
        ("POST", "/v1/chat/completions"): api.chat,
        ("POST", "/v1/completions"): api.completion,
        ("POST", "/v1/responses"): api.responses,
        ("POST", "/v1/embeddings"): api.embeddings,
    }
