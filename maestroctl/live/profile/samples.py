"""From the times of tokens to samples of the fit."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, quantiles

from maestroctl.estimate.iteration_fit import IterationSample
from maestroctl.live.profile.load import Trace


def decode_sample(traces: Sequence[Trace]) -> tuple[IterationSample, float] | None:
    """The stretch in which all of some requests decode: from the last first token to the first end.

    Returns:
        The sample, and tokens in KV of one sequence on average; None when they did not overlap.
    """
    began_s = max(trace.first_s for trace in traces)
    ended_s = min(trace.end_s for trace in traces)
    last = max(traces, key=lambda trace: trace.first_s)
    iterations = last.count_at(ended_s) - last.count_at(began_s)
    if iterations <= 0 or ended_s <= began_s:
        return None
    contexts = [
        trace.prompt_tokens + (trace.count_at(began_s) + trace.count_at(ended_s)) / 2
        for trace in traces
    ]
    sample = IterationSample(
        seconds=ended_s - began_s,
        iterations=iterations,
        decoding=iterations * len(traces),
        context_tokens=iterations * sum(contexts),
    )
    return sample, fmean(contexts)


def prefill_sample(trace: Trace, max_batched_tokens: int) -> IterationSample:
    """From sending one request to an idle engine to its first token."""
    return IterationSample(
        seconds=trace.first_s - trace.sent_s,
        iterations=-(-trace.prompt_tokens // max_batched_tokens),
        prefill_tokens=trace.prompt_tokens,
        requests=1,
    )


def spread_of(values: Sequence[float]) -> float:
    """Half the distance between the quartiles as a share of the median; infinite for one value."""
    if len(values) < 2:
        return float("inf")
    first, _, third = quantiles(values, n=4, method="inclusive")
    return (third - first) / 2 / median(values)
