"""The stage descriptor of a request: what the scheduler and the predictors see of it.

Prompt tokens are bytes times a running tokens-per-byte of (model, role); engines correct it with
the `usage` of every answer. Nothing is tokenized here.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from typing import Any, NamedTuple

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.stage import PromptTokens, StageDescriptor
from maestroctl.domain.stage_text import StageText, end_of_prompt, write_turn
from maestroctl.gateway.conversation import Conversation, Turn, arguments_text
from maestroctl.gateway.identity import Claims
from maestroctl.gateway.openai_schema import Api, Body

START_TOKENS_PER_BYTE = 0.25
_LEAST, _MOST = 0.005, 1.5
"""Bounds of a believable tokens-per-byte."""
_GAIN = 0.2
_TOKENS_PER_PART = 512
"""Nominal, for an image or audio part."""
_SAYS_NOTHING = frozenset(
    ("stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "n")
)
"""Checked fields without tools, formats or reasoning: the rest need not be looked for."""
_MAX_RATIOS = 4096
_MAX_JOBS = 20_000
_JOB_TTL_S = 1800.0


class TokenCounter:
    """Tokens of a prompt from its bytes, per (model, role)."""

    def __init__(self) -> None:
        self._ratios: OrderedDict[tuple[str, str], float] = OrderedDict()

    def tokens_per_byte(self, model: str, role: str) -> float:
        """The running ratio; that of the model, or the start value, while the role is new."""
        ratio = self._ratios.get((model, role))
        if ratio is None:
            ratio = self._ratios.get((model, ""), START_TOKENS_PER_BYTE)
        return ratio

    def learn(self, model: str, role: str, num_bytes: int, num_tokens: int) -> None:
        """Correct the ratio by what an engine counted."""
        if num_bytes <= 0 or num_tokens <= 0:
            return
        seen = min(max(num_tokens / num_bytes, _LEAST), _MOST)
        self._move((model, ""), seen)
        if role:
            self._move((model, role), seen)
        while len(self._ratios) > _MAX_RATIOS:
            self._ratios.popitem(last=False)

    def _move(self, key: tuple[str, str], seen: float) -> None:
        old = self._ratios.get(key)
        self._ratios[key] = seen if old is None else old + _GAIN * (seen - old)
        self._ratios.move_to_end(key)


class _JobState:
    """What came before in one job."""

    __slots__ = ("calls", "roles", "seen_s")

    def __init__(self) -> None:
        self.calls = 0
        self.roles: dict[str, int] = {}
        self.seen_s = 0.0


class JobPositions:
    """Counts the calls of each job; a bounded memory, least recently seen jobs go first.

    A request that names no job and continues none is not counted: most jobs of one stage stay so,
    and one that is continued later had that one call.
    """

    def __init__(self, *, max_jobs: int = _MAX_JOBS, ttl_s: float = _JOB_TTL_S) -> None:
        self._jobs: OrderedDict[JobId, _JobState] = OrderedDict()
        self._max_jobs = max_jobs
        self._ttl_s = ttl_s

    def __len__(self) -> int:
        return len(self._jobs)

    def count(
        self, job: JobId, role: str, now_s: float, *, continued: bool = False
    ) -> tuple[int, int]:
        """Position of a new call in its job, and how often its role was called before.

        Args:
            continued: the job had at least one call, counted or not.
        """
        state = self._jobs.get(job)
        if state is None or now_s - state.seen_s > self._ttl_s:
            state = self._jobs[job] = _JobState()
            if continued:
                state.calls = state.roles[role] = 1
        self._jobs.move_to_end(job)
        state.seen_s = now_s
        position, invocation = state.calls, state.roles.get(role, 0)
        state.calls += 1
        if len(state.roles) < 256 or role in state.roles:
            state.roles[role] = invocation + 1
        while len(self._jobs) > self._max_jobs:
            self._jobs.popitem(last=False)
        return position, invocation


class PromptSize(NamedTuple):
    """What a prompt consists of.

    Attributes:
        num_bytes: of text that the engine tokenizes: the conversation and the tools.
        num_exact: tokens known without a ratio: token ids, and a nominal number per image.
    """

    num_bytes: int
    num_exact: int


def measure_prompt(body: Body, conversation: Conversation) -> PromptSize:
    """The size of a prompt, before the chat template."""
    total = _size(conversation.system)
    exact = conversation.num_token_ids
    for turn in conversation.turns:
        total += _size(turn.text)
        exact += len(turn.others) * _TOKENS_PER_PART
        for name, arguments in turn.calls:
            total += _size(name) + (_size(arguments) if isinstance(arguments, str) else 64)
    tools = body.fields.get("tools")
    return PromptSize(total + (memoryview(tools).nbytes if tools is not None else 0), exact)


def read_text(conversation: Conversation) -> StageText:
    """What the predictors read of it."""
    return StageText(conversation.system, end_of_prompt(conversation.turns, _read_turn))


def _read_turn(turn: Turn) -> tuple[str, str]:
    if not turn.calls:
        return turn.role, turn.text
    calls = [(name, arguments_text(given)) for name, given in turn.calls]
    return turn.role, write_turn(turn.text, calls)


def build_descriptor(
    *,
    stage_id: StageId,
    job: JobId,
    claims: Claims,
    candidates: tuple[ModelName, ...],
    body: Body,
    text: StageText,
    size: PromptSize,
    ratio: float,
    position: tuple[int, int],
    now_s: float,
) -> StageDescriptor:
    """Put together what is known of the stage; see `StageDescriptor` for the fields.

    Args:
        ratio: tokens per byte.
        position: of `JobPositions.count`.
    """
    known = body.known
    names = sorted([tool.label for tool in known["tools"]]) if "tools" in known else []
    says_more = not known.keys() <= _SAYS_NOTHING
    return StageDescriptor(
        stage_id=stage_id,
        job_id=job,
        candidates=candidates,
        arrival_s=now_s,
        prompt_tokens=PromptTokens.of(
            text, full=math.ceil(size.num_bytes * ratio) + size.num_exact
        ),
        workflow=claims.workflow,
        step=claims.stage,
        role=claims.role,
        service_class=claims.service_class,
        deadline_s=None if claims.deadline_s is None else now_s + claims.deadline_s,
        position=position[0],
        depth=position[0],
        invocation_index=position[1],
        max_tokens=_output_limit(body),
        tools_available=len(names),
        tools_digest=_digest(names) if names else "",
        tool_choice=_tool_choice(known.get("tool_choice")) if says_more else "auto",
        response_format=_response_format(known) if says_more else "text",
        reasoning=_reasoning(known) if says_more else "",
    )


def _size(text: str) -> int:
    """Bytes in UTF-8; `isascii` is a flag of the string, encoding is not."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _output_limit(body: Body) -> int | None:
    if body.api is Api.EMBEDDINGS:
        return 1  # no output; descriptors count at least one token
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        limit = body.known.get(name)
        if limit is not None:
            return int(limit)
    return None


def _digest(names: list[str]) -> str:
    text = "\0".join(names).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _tool_choice(choice: Any) -> str:
    """``auto``, ``none``, ``required`` or the name of the tool that must be called."""
    if isinstance(choice, dict):
        function = choice.get("function")
        named = function.get("name") if isinstance(function, dict) else choice.get("name")
        choice = named or choice.get("type") or "auto"
    if choice is None:
        return "auto"
    return "required" if choice == "any" else str(choice)


def _response_format(known: dict[str, Any]) -> str:
    form = known.get("response_format")
    if form is None and isinstance(known.get("text"), dict):
        form = known["text"].get("format")
    kind = form.get("type") if isinstance(form, dict) else None
    return kind if isinstance(kind, str) else "text"


def _reasoning(known: dict[str, Any]) -> str:
    """Reasoning effort or mode, as far as the request says it."""
    effort = known.get("reasoning_effort")
    if effort:
        return str(effort)
    reasoning = known.get("reasoning")
    if reasoning and isinstance(reasoning.get("effort"), str):
        return str(reasoning["effort"])
    thinking = known.get("thinking")
    if thinking and isinstance(thinking.get("type"), str):
        return str(thinking["type"])
    template = known.get("chat_template_kwargs")
    if template and isinstance(template.get("enable_thinking"), bool):
        return "enabled" if template["enable_thinking"] else "disabled"
    return ""
