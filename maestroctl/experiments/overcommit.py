"""Maestro Table V: virtual KV of five Qwen3 models on one card of 40 GB, and what it buys.

First the table: each model reserves virtual KV up to what the card could give it alone, U less its
weights. Then what sharing pages buys: a backlog of stages with long-tailed popularity is admitted
until nothing more fits, once with the card's KV memory split statically between the models that
are awake, then as one pool of pages (elastic limits), with the same models awake and with idle ones
asleep. Every admission goes through the arithmetic
of Eq 3 and Eq 4.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.units import MIB
from maestroctl.estimate.kv_cache import estimate_sequence_kv_bytes
from maestroctl.experiments.harness import Experiment, Plot, Runner, Scale, estimate
from maestroctl.experiments.setup import GB, QWEN3, qwen3_profile
from maestroctl.sim.workload import JobSource

USABLE_BYTES = round(35.36 * GB)
"""U: what vLLM takes of a 40 GB card (0.9 of it) less activations; the paper does not state it.
Chosen once, from the first row of the table (1.12 + 34.24)."""
PAPER_VIRTUAL_GB = {
    "qwen3-0.6b": 34.24,
    "qwen3-1.7b": 32.15,
    "qwen3-4b": 27.81,
    "qwen3-8b": 20.07,
    "qwen3-14b": 7.74,
}
CARD_GB = 40.0
AWAKE = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b")
"""The largest set of the five whose weights fit together and leave memory for KV."""
MAX_LEN = 8192
"""Tokens of the longest stage: a static part must hold one."""
BACKLOG = 400
ZIPF = 1.0
"""Demand for the model of rank r falls as r^-ZIPF; ranks are drawn anew for each backlog."""


def run(scale: Scale, source: JobSource, runner: Runner) -> Experiment:  # noqa: ARG001
    """The table, then backlogs."""
    experiment = Experiment(
        "overcommit",
        "Virtual KV of five models on one 40 GB card (Maestro Table V)",
        ("model", "weights_gb", "context_mb", "virtual_kv_gb", "paper_gb", "difference"),
        Plot("model", None, ("virtual_kv_gb", "paper_gb")),
        parameters={"U, GB": USABLE_BYTES / GB, "awake together": AWAKE, "backlog": BACKLOG},
        paper="virtual KV about 122 GB in all = 3.05 x of 40 GB, 67.2 % less than reserving it",
    )
    total = 0.0
    for name, (weights_gb, context_mb, _) in QWEN3.items():
        virtual = USABLE_BYTES / GB - weights_gb
        total += virtual
        paper = PAPER_VIRTUAL_GB[name]
        experiment.rows.append(
            {
                "model": name,
                "weights_gb": weights_gb,
                "context_mb": context_mb,
                "virtual_kv_gb": virtual,
                "paper_gb": paper,
                "difference": virtual / paper - 1,
            }
        )
    seeds = range(max(20, scale.seeds))
    pages, with_sleep = {}, {}
    over_demands = [0.0] * len(seeds)
    for busy in range(1, len(AWAKE) + 1):
        found = [_admit(source, seed, busy) for seed in seeds]
        ratios = [pooled / split for split, pooled, _ in found]
        over_demands = [a + b / len(AWAKE) for a, b in zip(over_demands, ratios, strict=True)]
        pages[str(busy)] = estimate(ratios)
        with_sleep[str(busy)] = estimate([slept / split for split, _, slept in found])
    experiment.headline = {
        "virtual_kv_gb": total,
        "overcommit": total / CARD_GB,
        "reservation_saved": 1 - CARD_GB / total,
        "largest_row_difference": max(abs(row["difference"]) for row in experiment.rows),
        "tokens_ratio": estimate(over_demands),
        "tokens_ratio_same_awake_by_busy": pages,
        "tokens_ratio_idle_asleep_by_busy": with_sleep,
    }
    experiment.notes += [
        "Tokens are those admitted at once from one backlog, in its order per model. The static"
        " split keeps the four models that fit together awake and gives each an equal part of the"
        " KV memory.",
        "`same_awake_by_busy`: the same four awake, one to four with demand. This credits paging"
        " with the parts that a static split keeps for models nobody asks for; with all four only"
        " the uneven popularity is there to gain from.",
        "`tokens_ratio`: its mean over one to four with demand, equally often.",
        "`idle_asleep_by_busy`: models without demand sleep besides (their context stays), which"
        " the static side is not allowed. This credits residency and paging together.",
    ]
    return experiment


def _admit(source: JobSource, seed: int, busy: int) -> tuple[float, float, float]:
    """Tokens of the same backlog that are admitted by a static split, by one pool of pages with
    the same models awake, and by one pool with the idle ones asleep.

    Args:
        busy: how many of the models have demand; which ones is drawn.
    """
    rng = random.Random(f"overcommit/{seed}")
    profiles = {name: qwen3_profile(name, length=MAX_LEN) for name in AWAKE}
    ranked = rng.sample(AWAKE, len(AWAKE))[:busy]
    backlog = _make_backlog(rng, source, profiles, ranked)
    split = _kv_bytes(AWAKE) // len(AWAKE)
    static = _fill(backlog, profiles, dict.fromkeys(AWAKE, split), _kv_bytes(AWAKE))
    pooled, slept = (_fill(backlog, profiles, {}, _kv_bytes(awake)) for awake in (AWAKE, ranked))
    return static, pooled, slept


def _kv_bytes(awake: Sequence[str]) -> int:
    """What is left for KV while these are awake and the others of the five sleep (Eq 4)."""
    contexts = sum(context_mb * MIB for _, context_mb, _ in QWEN3.values())
    return USABLE_BYTES - contexts - round(sum(QWEN3[name][0] for name in awake) * GB)


def _make_backlog(
    rng: random.Random,
    source: JobSource,
    profiles: Mapping[str, ModelProfile],
    ranked: Sequence[str],
) -> list[tuple[str, int]]:
    """(model, prompt plus output) of stages that wait."""
    weights = [1.0 / rank**ZIPF for rank in range(1, len(ranked) + 1)]
    apps = source.apps
    backlog: list[tuple[str, int]] = []
    while len(backlog) < BACKLOG:
        job = source.draw(rng, apps)
        model = rng.choices(ranked, weights)[0]
        length = profiles[model].max_model_len
        backlog += [(model, min(length, c.prompt_tokens + c.output_tokens)) for c in job.calls]
    return backlog[:BACKLOG]


def _fill(
    backlog: Sequence[tuple[str, int]],
    profiles: Mapping[str, ModelProfile],
    shares: Mapping[str, int],
    pool: int,
) -> float:
    """Admit in order, each model until its first stage that does not fit. Eq 4 holds throughout."""
    used = dict.fromkeys(profiles, 0)
    full: list[str] = []
    tokens = 0
    for model, length in backlog:
        if model in full:
            continue
        need = estimate_sequence_kv_bytes(profiles[model], length)
        limit = shares.get(model, pool - sum(used.values()) + used[model])
        if used[model] + need > limit:
            full.append(model)
            continue
        used[model] += need
        tokens += length
        assert sum(used.values()) <= pool
    return float(tokens)
