"""What may stand in a profile file (`profiles/<device>/<model>.toml`).

See also: `config.profile` (reads it), `config.profile_writer` (writes it), `domain.profile` (what
it becomes).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from maestroctl.config.composed_kinds import SOURCE
from maestroctl.config.kinds import (
    ARGUMENTS,
    BOOLEAN,
    TEXT,
    TEXTS,
    Kind,
    Mismatch,
    integer,
    name_of,
    number,
    one_of,
    seconds,
    size,
)
from maestroctl.config.tables import Key, Table
from maestroctl.domain.llm import EngineKind

SCHEMA = 1
"""Version of the file; a reader refuses a higher one."""

_TOKENS = integer(1, 100_000_000)
_BATCH = integer(1, 65536)
_COUNT = integer(0, 1 << 40)
_ERROR = number(0, 1e6)
_COST = number(0, 3600)


class ProfileOrigin(StrEnum):
    """Where the figures of a file come from."""

    MEASURED = "measured"
    DERIVED = "derived"


class DeviceKind(StrEnum):
    """What a model runs on."""

    CPU = "cpu"
    CUDA = "cuda"


def _pair_of(kind: Kind, label: str) -> Kind:
    def parse(value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list) or len(value) != 2:
            raise Mismatch
        low, high = (kind.parse(item) for item in value)
        if low > high:
            raise Mismatch("the first is larger than the second")
        return (low, high)

    return Kind(label, parse)


_INTERVAL = _pair_of(_COST, "two numbers, the smaller one first")
_BATCHES = _pair_of(_BATCH, "two whole numbers, the smaller one first")

PROFILE = Table(
    "[profile]",
    "What was measured, when, and by what.",
    (
        Key("schema", integer(1, 1 << 30), "Version of the file's form.", required=True),
        Key("model", name_of("model"), "Name of the model.", required=True),
        Key("source", SOURCE, "Where its weights came from.", absent="any"),
        Key("origin", one_of(ProfileOrigin), "How the figures were found.", required=True),
        Key("made_at", TEXT, "Date and time.", absent="unknown"),
        Key("maestroctl", TEXT, "Version that wrote the file.", absent="unknown"),
        Key("missing", TEXTS, "Figures that are from geometry instead.", absent="none"),
    ),
)

DEVICE = Table(
    "[device]",
    "The device.",
    (
        Key("name", TEXT, "As its driver or the system names it.", required=True),
        Key("kind", one_of(DeviceKind), "What it is.", required=True),
    ),
)

ENGINE = Table(
    "[engine]",
    "What ran the model. A profile is used only where the same engine runs it.",
    (
        Key("kind", one_of(EngineKind), "Kind of engine.", required=True),
        Key("version", TEXT, "Its version.", absent="unknown"),
        Key("args", ARGUMENTS, "Arguments that change what an iteration costs.", absent="none"),
        Key("tensor_parallel", integer(1, 1024), "Devices it is split over.", absent="1"),
        Key("threads", integer(1, 4096), "CPU threads it had.", absent="not a CPU"),
        Key("max_batched_tokens", _COUNT, "Tokens of one iteration.", absent="the engine's own"),
    ),
)

MEMORY = Table(
    "[memory]",
    "Bytes of one engine on each device.",
    (
        Key("weights", size(0), "On the device while awake.", required=True),
        Key("context", size(0), "Stays on the device while asleep.", required=True),
        Key("peak", size(0), "More while it works.", required=True),
        Key("start_peak", size(0), "More while it starts.", required=True),
        Key("host_asleep", size(0), "Host memory of a sleeping engine.", required=True),
    ),
)

KV = Table(
    "[kv]",
    "The KV cache: its size per token, and the shape that another size is derived from.",
    (
        Key("bytes_per_token", _COUNT, "Bytes that one token takes.", required=True),
        Key("block_tokens", _TOKENS, "Tokens per block.", required=True),
        Key("pool", size(0), "Pool that was measured with.", required=True),
        Key("least", size(0), "Least pool that holds one longest sequence.", required=True),
        Key("num_blocks", _COUNT, "Blocks the engine made of the pool.", absent="it does not say"),
        Key("max_model_len", _TOKENS, "Longest sequence of the model.", required=True),
        Key("layers", _BATCH, "Layers.", required=True),
        Key("heads", _BATCH, "KV heads on each device.", required=True),
        Key("head_dim", _BATCH, "Elements of one head.", required=True),
        Key("bytes_per_element", number(0.1, 16), "2 for bf16, 1 for fp8.", required=True),
        Key("sliding_window", _TOKENS, "Tokens a sliding layer keeps.", absent="none slides"),
        Key("sliding_layers", integer(0, 65536), "Layers that slide.", absent="0"),
        Key("latent_dim", _BATCH, "MLA: elements per token and layer.", absent="no MLA"),
    ),
)

ACTIVATION = Table(
    "[activation]",
    "Seconds of the transitions, fixed part included.",
    (
        Key("cold_start_s", seconds(), "From nothing to the first token.", required=True),
        Key("wake_s", seconds(), "From asleep to the first token.", required=True),
        Key("sleep_s", seconds(), "From awake to the memory being free.", required=True),
    ),
)

ITERATION = Table(
    "[iteration]",
    "One iteration takes (c0 + c1 b + c2 sum(context) + cp prefill tokens) gamma seconds.",
    (
        Key("c0_s", _COST, "Per iteration.", required=True),
        Key("c1_s", _COST, "Per decoding sequence.", required=True),
        Key("c2_s", _COST, "Per token in KV.", required=True),
        Key("cp_s", _COST, "Per prompt token.", required=True),
        Key(
            "gamma",
            number(1, 1000),
            "Slow-down while another engine of the device works.",
            required=True,
        ),
        Key("gamma_measured", BOOLEAN, "False: assumed.", absent="false"),
        Key("max_batch", _BATCH, "Largest batch that pays.", required=True),
        Key("saturated", BOOLEAN, "A larger batch was tried and did not pay.", absent="false"),
    ),
)

_ERRORS = (
    Key("median_error", _ERROR, "Relative error, the median.", required=True),
    Key("p90_error", _ERROR, "Its 0.9 quantile.", required=True),
)

FIT = Table(
    "[fit]",
    "How well the four costs say what was seen; for people.",
    (
        Key("num_samples", _COUNT, "Samples.", required=True),
        *_ERRORS,
        *(
            Key(f"{cost}_interval_s", _INTERVAL, "95 % interval.", required=True)
            for cost in ("c0", "c1", "c2", "cp")
        ),
        Key("request_s", _COST, "Time of a request outside of iterations.", absent="0"),
    ),
)

CHECK = Table(
    "[check]",
    "Predicted against measured stage times of requests that the fit has not seen; for people.",
    (
        Key("num_stages", _COUNT, "Stages compared.", required=True),
        Key("batches", _BATCHES, "Least and most stages at once.", required=True),
        *_ERRORS,
        Key("bias", number(-1e6, 1e6), "Median of the signed errors.", required=True),
    ),
)

_SPREAD = Key("spread", _ERROR, "Half the quartile distance over the median.", required=True)
_SAMPLES = Key("num_samples", _COUNT, "How often it was measured.", required=True)
_SECONDS = Key("seconds", _COST, "The median.", required=True)

DECODE = Table(
    "[[decode]]",
    "Seconds per token of one sequence, by batch size; for people.",
    (
        Key("batch", _BATCH, "Sequences that decode at once.", required=True),
        Key("context_tokens", _COUNT, "Tokens in KV of each.", required=True),
        _SECONDS,
        _SPREAD,
        _SAMPLES,
    ),
)

PREFILL = Table(
    "[[prefill]]",
    "Seconds to the first token, by length of the prompt; for people.",
    (Key("prompt_tokens", _TOKENS, "Length.", required=True), _SECONDS, _SPREAD, _SAMPLES),
)

SINGLE_TABLES = (PROFILE, DEVICE, ENGINE, MEMORY, KV, ACTIVATION, ITERATION, FIT, CHECK)
LIST_TABLES = (DECODE, PREFILL)
ALL_TABLES = (*SINGLE_TABLES, *LIST_TABLES)
OPTIONAL = ("fit", "check")
TOP_LEVEL = tuple(table.header.strip("[]") for table in ALL_TABLES)
