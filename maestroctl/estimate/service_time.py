"""How long an engine works on a stage (Maestro Eqs 1 and 2).

One iteration of an engine lasts c0 + c1 b + c2 sum(context) + cp prefill_tokens seconds, and
`estimate_slowdown` times as long beside other engines that work. The equations of the paper use two
numbers of it: t_pre(P), the prefill of P tokens, and t_dec, a decoding step at a reference batch.
"""

from __future__ import annotations

from maestroctl.domain.llm import IterationCost, ModelProfile


def estimate_iteration_s(
    cost: IterationCost,
    num_decoding: int,
    context_tokens: int = 0,
    prefill_tokens: int = 0,
) -> float:
    """Seconds of one engine iteration.

    Args:
        cost: c0, c1, c2 and cp of the model on its device.
        num_decoding: b, sequences that decode one token each.
        context_tokens: tokens in KV of all of them together.
        prefill_tokens: prompt tokens processed in the same iteration.
    """
    return (
        cost.c0_s
        + cost.c1_s * num_decoding
        + cost.c2_s * context_tokens
        + cost.cp_s * prefill_tokens
    )


def estimate_slowdown(gamma: float, neighbours: int) -> float:
    """1 + (gamma - 1) neighbours: how much longer iterations last beside other engines.

    Args:
        gamma: of the model on its device: the factor beside one neighbour.
        neighbours: other engines of the device that run iterations at the same time.
    """
    return 1.0 + (gamma - 1.0) * neighbours


def estimate_prefill_s(profile: ModelProfile, prompt_tokens: int, cached_tokens: int = 0) -> float:
    """t_pre(P, M): seconds from the start of the prefill to the first token.

    Args:
        profile: of the model.
        prompt_tokens: P.
        cached_tokens: of these, already in the engine's prefix cache.
    """
    todo = max(0, prompt_tokens - cached_tokens)
    return estimate_iteration_s(profile.iteration, 0, 0, todo)


def estimate_decode_s(profile: ModelProfile, batch: int = 1, context_tokens: int = 0) -> float:
    """t_dec(M): seconds per output token of one sequence in a batch of `batch`."""
    return estimate_iteration_s(profile.iteration, batch, context_tokens)


def estimate_execution_s(
    profile: ModelProfile,
    prompt_tokens: int,
    output_tokens: float,
    *,
    batch: int = 1,
    cached_tokens: int = 0,
) -> float:
    """T_exec = t_pre(P, M) + t_dec(M) L (Maestro Eqs 1 and 2).

    Args:
        profile: of the model.
        prompt_tokens: P.
        output_tokens: L, or its prediction; may be fractional.
        batch: the reference batch at which t_dec is read.
        cached_tokens: prompt tokens already in the prefix cache.

    Returns:
        Seconds, queueing and activation not included.
    """
    decode_s = estimate_decode_s(profile, batch)
    return estimate_prefill_s(profile, prompt_tokens, cached_tokens) + decode_s * output_tokens
