"""Stage times of requests that reach an idle engine together, iteration by iteration.

The same rules as the simulator's engine: an iteration carries a token of every decoding sequence
and min(pending, max_batched_tokens - b) prompt tokens in order; a prompt's last iteration gives its
first token. Nothing waits for KV here.
"""

from __future__ import annotations

from collections.abc import Sequence

from maestroctl.domain.llm import IterationCost
from maestroctl.estimate.service_time import estimate_iteration_s


def estimate_batch_s(
    cost: IterationCost, requests: Sequence[tuple[int, int]], max_batched_tokens: int
) -> list[float]:
    """Seconds from arrival to the last token of each request.

    Args:
        cost: of the model on its device; alone on it.
        requests: (prompt tokens, output tokens), each at least 1, in order of arrival.
        max_batched_tokens: tokens of one iteration, decoding ones included.
    """
    todo = [prompt for prompt, _ in requests]
    left = [output for _, output in requests]
    context = [prompt for prompt, _ in requests]
    ends = [0.0] * len(requests)
    decoding: list[int] = []
    prefilling = list(range(len(requests)))
    now_s = 0.0
    while decoding or prefilling:
        room = max(1, max_batched_tokens - len(decoding))
        prefill = min(sum(todo[i] for i in prefilling), room) if prefilling else 0
        held = sum(context[i] for i in decoding)
        now_s += estimate_iteration_s(cost, len(decoding), held, prefill)
        ready = _hand_out(prefill, prefilling, todo)
        for i in [*decoding, *ready]:
            left[i] -= 1
            context[i] += 1
            if left[i] <= 0:
                ends[i] = now_s
        prefilling = [i for i in prefilling if todo[i]]
        decoding = [i for i in [*decoding, *ready] if left[i] > 0]
    return ends


def _hand_out(tokens: int, prefilling: Sequence[int], todo: list[int]) -> list[int]:
    """Take this iteration's prompt tokens from the first prompts; those that are done."""
    ready = []
    for i in prefilling:
        taken = min(tokens, todo[i])
        todo[i] -= taken
        tokens -= taken
        if todo[i] == 0:
            ready.append(i)
        if tokens == 0:
            break
    return ready
