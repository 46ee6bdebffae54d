"""What may stand in a simulation file; docs/simulator.md tells it to people.

See also: `sim.config` (reads it), `config.tables` (what a table is). `[policy]` is the fleet
file's own table.
"""

from __future__ import annotations

from typing import Any

from maestroctl.config.kinds import (
    BOOLEAN,
    TEXT,
    TEXTS,
    Kind,
    Mismatch,
    integer,
    list_of,
    name_of,
    names_of,
    number,
    one_of,
    seconds,
    size,
    word_of,
)
from maestroctl.config.profile_tables import DeviceKind
from maestroctl.config.service_tables import POLICY
from maestroctl.config.tables import Key, Table
from maestroctl.domain.stage import ServiceClass
from maestroctl.sim.prediction import KINDS
from maestroctl.sim.workload import ARRIVAL_KINDS

_TOKENS = integer(1, 100_000_000)
_JOBS = 10_000_000
_SHAPE = integer(1, 65536)
_COST = seconds(0, 3600)
_TICK = seconds(0.001)
"""What happens again and again; at no distance the clock would stand still."""
_MODELS = names_of("model")


def _role_models(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise Mismatch
    return {role: _MODELS.parse(names) for role, names in value.items()}


RUN = Table(
    "[run]",
    "How much is played.",
    (
        Key("jobs", integer(1, _JOBS), "How many jobs come.", absent="1000"),
        Key("warmup", integer(0, _JOBS), "The first of them, counted nowhere.", absent="0"),
        Key("seed", integer(0, 1 << 63), "Same seed, same run.", absent="1"),
        Key("max_output", _TOKENS, "Longest answer; longer ones are cut.", absent="4096"),
        Key("max_num_batched_tokens", _TOKENS, "Tokens of an iteration.", absent="2048"),
        Key("prefix_cache", BOOLEAN, "Prompts skip what went before.", absent="false"),
        Key("without", TEXTS, "Trace sources that are left out.", absent="none"),
    ),
)

GEOMETRY = (
    Key("weights", size(1), "Size of the weights."),
    Key("layers", _SHAPE, "Layers.", absent="36"),
    Key("kv_heads", _SHAPE, "KV heads.", absent="8"),
    Key("head_dim", _SHAPE, "Elements of a head.", absent="128"),
    Key("device", one_of(DeviceKind), "What it runs on.", absent="cuda"),
)
"""In place of a profile."""
COSTS = (
    Key("c0", _COST, "Per iteration.", field="c0_s"),
    Key("c1", _COST, "Per decoding sequence.", field="c1_s"),
    Key("c2", _COST, "Per token in KV.", field="c2_s"),
    Key("cp", _COST, "Per prompt token.", field="cp_s"),
    Key("gamma", number(1, 1000), "Slow-down beside another engine."),
)
TIMES = (
    Key("cold_start", seconds(), "From nothing to the first token.", field="cold_start_s"),
    Key("wake", seconds(), "From asleep to the first token.", field="wake_s"),
    Key("sleep", seconds(), "Until the memory is free.", field="sleep_s"),
)
"""These and `COSTS` replace figures of the profile, or those that follow from the geometry."""
MODEL = Table(
    "[[model]]",
    "A model and what it costs: by a profile, or by its geometry.",
    (
        Key("name", name_of("model"), "Its name.", required=True),
        Key("profile", TEXT, "A profile file, or DEVICE/MODEL of those that ship."),
        Key("max_model_len", _TOKENS, "Longest sequence.", absent="the profile's, or 8192"),
        Key("max_batch", _SHAPE, "Sequences at once.", absent="the profile's, or 16"),
        Key("kv_cache", size(1), "KV pool.", field="kv_cache_bytes"),
        *GEOMETRY,
        *COSTS,
        *TIMES,
    ),
)

NODE = Table(
    "[[node]]",
    "A machine, or several alike.",
    (
        Key("name", name_of("node"), "Its name; several are numbered.", absent="n"),
        Key("count", integer(1, 10_000), "How many.", absent="1"),
        Key("memory", size(1), "Of the device.", field="memory_bytes", absent="40 GiB"),
        Key("host_memory", size(0), "For sleepers.", field="host_memory_bytes", absent="128 GiB"),
        Key("models", _MODELS, "What it may run.", absent="all"),
        Key("rtt", seconds(), "To the coordinator and back.", absent="the network's"),
    ),
)

NETWORK = Table(
    "[network]",
    "How late messages are.",
    (
        Key("rtt", seconds(), "To a node and back.", field="rtt_s"),
        Key("send_soon", seconds(), "Changes of this time go together.", field="send_soon_s"),
        Key("snapshot_every", _TICK, "Longest time between two.", field="snapshot_every_s"),
        Key("progress_every", _TICK, "How often tokens are told.", field="progress_every_s"),
        Key("prediction", seconds(), "How late predictions are.", field="prediction_s"),
    ),
)

ARRIVALS = Table(
    "[arrivals]",
    "When jobs come.",
    (
        Key("kind", word_of(ARRIVAL_KINDS), "How they come."),
        Key("rate", number(1e-4, 1e9), "Jobs per second.", field="rate_rps"),
        Key("cv", number(0.01, 100), "Of the gaps, when bursty."),
        Key("trace", TEXT, "Name of the recorded arrivals."),
    ),
)

CLASS = Table(
    "[[class]]",
    "A part of the jobs.",
    (
        Key("service_class", one_of(ServiceClass), "Who waits.", absent="interactive"),
        Key("share", number(0, 1e9), "Of all jobs; scaled to sum to 1.", absent="1"),
        Key("apps", TEXTS, "Applications it draws from.", absent="all"),
        Key("deadline_factor", number(0, 1e9), "x the job's own time on an idle fleet."),
        Key("deadline", seconds(), "Added to that.", field="deadline_s"),
        Key("tool_time", seconds(), "Mean time of a tool.", field="tool_s"),
        Key("models", _MODELS, "Candidates.", absent="the first"),
        Key(
            "role_models",
            Kind("a table of role = list of models", _role_models),
            "Candidates per role.",
        ),
    ),
)

PREDICTION = Table(
    "[prediction]",
    "How wrong predictions are.",
    (
        Key("error", word_of(KINDS), "Kind of error.", field="kind"),
        Key("rho", number(0, 10), "Standard deviation of the log error."),
        Key(
            "residuals",
            list_of(number(-20, 20), label="a list of numbers from -20 to 20", least=1),
            "Log of predicted over true.",
        ),
    ),
)

SINGLE_TABLES = {
    "run": RUN,
    "policy": POLICY,
    "network": NETWORK,
    "arrivals": ARRIVALS,
    "prediction": PREDICTION,
}
LIST_TABLES = {"model": MODEL, "node": NODE, "class": CLASS}
TOP_LEVEL = (*SINGLE_TABLES, *LIST_TABLES)
