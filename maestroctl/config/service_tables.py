"""Tables of ``fleet.toml`` about the service itself: coordinator, policy, tools, logs, predictors.

See also: `config.served_tables` (what is served, and where), `config.fleet_tables` (all of them).
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from maestroctl.config.composed_kinds import (
    LISTEN,
    Listen,
)
from maestroctl.config.kinds import (
    BOOLEAN,
    TEXT,
    TEXTS,
    Kind,
    Mismatch,
    integer,
    milliseconds,
    number,
    seconds,
    show_value,
    size,
)
from maestroctl.config.tables import Key, Table
from maestroctl.domain.fleet import (
    CoordinatorSpec,
    EventLogSpec,
    PredictorSpec,
    ToolsSpec,
)
from maestroctl.domain.policy import PolicySpec

_STATE_SCHEMES = ("sqlite", "postgresql")


def _state_url(value: Any) -> str:
    text: str = TEXT.parse(value)
    scheme = text.partition(":")[0].partition("+")[0]
    if "://" not in text or scheme not in _STATE_SCHEMES:
        raise Mismatch(hint='"sqlite:///PATH" or "postgresql://USER@HOST/DATABASE"')
    return text


def _show_state_url(url: str) -> str:
    try:
        password = urlsplit(url).password
    except ValueError:
        return '"***"'
    return show_value(url.replace(f":{password}@", ":***@") if password else url)


STATE_URL = Kind("an SQLite or PostgreSQL URL", _state_url, _show_state_url)

_PATTERN = re.compile(r"[^\s]+")


def _tool_patterns(value: Any) -> tuple[str, ...]:
    patterns: tuple[str, ...] = TEXTS.parse(value)
    for pattern in patterns:
        if _PATTERN.fullmatch(pattern) is None or ":" not in pattern:
            raise Mismatch(
                f"{pattern!r} names neither a function nor a URL",
                hint='write "module:function", "module:*" or "http://host/path*"',
            )
    return patterns


TOOL_PATTERNS = Kind('a list of "module:function" or URL patterns, * allowed', _tool_patterns)


def _listen_of(spec: CoordinatorSpec) -> Listen:
    return Listen(spec.host, spec.port)


COORDINATOR = Table(
    "[coordinator]",
    "The process that `maestroctl serve` starts: its address and its durable state.",
    (
        Key(
            "listen",
            LISTEN,
            "Address of the gateway. An address other machines can reach needs `api_keys_file`."
            " Port 0 takes a free one.",
            env="MAESTROCTL_LISTEN",
            get=_listen_of,
        ),
        Key(
            "state",
            STATE_URL,
            "Database that outlives the process: jobs, results, decisions.",
            absent="an SQLite file `state.db` in the folder `$MAESTROCTL_HOME`,"
            " `~/.local/share/maestroctl` without it",
            env="MAESTROCTL_STATE",
        ),
        Key(
            "api_keys_file",
            TEXT,
            "File with one API key per line, plain or `sha256:HEX`; a relative path starts at the"
            " folder of this file.",
            absent="no key is asked for",
            env="MAESTROCTL_API_KEYS_FILE",
        ),
        Key("max_held", integer(1, 1_000_000), "HTTP requests held open at once; past that 429."),
        Key(
            "max_body",
            size(1024, 1 << 32),
            "Largest request body; a larger one gets 413 before it is read.",
            field="max_body_bytes",
        ),
        Key("heartbeat_s", seconds(0.1, 3600), "Time between heartbeats of a waiting stream."),
        Key("history_jobs", integer(0, 1_000_000_000), "Finished jobs that are kept."),
        Key(
            "drain_timeout_s",
            seconds(),
            "How long a stop waits for what runs before it is interrupted.",
        ),
    ),
    CoordinatorSpec,
)

POLICY = Table(
    "[policy]",
    "How decisions are made. An unknown policy name is refused with the known ones.",
    (
        Key("ordering", TEXT, "Which ready stage goes first."),
        Key(
            "routing",
            TEXT,
            "Which node runs a stage.",
            absent="`maestroctl` where several nodes are declared, else `single_node`",
        ),
        Key(
            "model_choice",
            TEXT,
            "Which of several candidate models serves a job: `first` that can, `maestroctl` (the"
            " one whose confidence is worth its time), `chimera` and `chimera_full` (the most"
            " confident within the slack), `fastest`, `most_confident`, `round_robin`,"
            " `least_loaded`.",
        ),
        Key("residency", TEXT, "Which idle engine gives way to another model."),
        Key("degradation", TEXT, "How memory is freed under pressure."),
        Key("look_ahead", TEXT, "Whether models that a workflow needs next are woken ahead."),
        Key(
            "readiness_weight",
            number(0, 1e6),
            "Weight of the time until a node could serve, against its gain (lambda).",
        ),
        Key(
            "degradation_weight",
            number(0, 1e6),
            "Weight of what others lose on a node, against its gain (mu).",
        ),
        Key(
            "latency_slack",
            number(0, 1e6),
            "How much slower a more confident model may be (tau): a share of the fastest one's"
            " latency (`chimera`), or typical services per ten points of confidence gained"
            " (`maestroctl`).",
        ),
        Key(
            "confidence_margin",
            number(0, 1),
            "How much more confident than the fastest a slower model must be (delta_s).",
        ),
        Key(
            "admission_quantile",
            number(0.5, 0.99),
            "Which quantile of the predicted answer length is booked: more lets fewer requests in"
            " at once and fewer outgrow their memory.",
        ),
        Key(
            "aging_s",
            number(0, 1e6),
            "How many seconds of work one second of waiting makes up for.",
        ),
        Key(
            "max_wait_s",
            seconds(),
            "After this long a waiting stage is overtaken only by older ones.",
        ),
        Key(
            "group_wait_s",
            seconds(),
            "How long a model on the device goes on while another model waits for its place.",
            absent="nine times as long as a switch takes, from 5 to 60",
        ),
        Key(
            "drain_wait_s",
            seconds(),
            "How long a busy model may take to make room before it is suspended or, when it only"
            " has requests that have not begun to answer, sent back to the queue.",
        ),
        Key(
            "resume_deadline_s",
            seconds(),
            "After this long a suspended model precedes every new admission.",
        ),
        Key(
            "queue_timeout_s",
            seconds(1),
            "A stage that found no place for this long ends as unavailable.",
        ),
    ),
    PolicySpec,
)

TOOLS = Table(
    "[tools]",
    "What workflow files may call. Nothing is allowed unless it is named here.",
    (
        Key(
            "allow",
            TOOL_PATTERNS,
            "Patterns of functions and URLs. A pattern with `*` reaches only functions that the"
            " module defines or lists in `__all__`.",
        ),
    ),
    ToolsSpec,
)

EVENT_LOG = Table(
    "[event_log]",
    "Everything that the decisions were taken from, in files that `maestroctl replay` runs again."
    " Prompts, outputs and keys are never in them.",
    (
        Key("enabled", BOOLEAN, "Whether logs are written."),
        Key(
            "folder",
            TEXT,
            "Folder of the logs of this machine; a relative path starts at the folder of this"
            " file.",
            absent="`events` in the folder `$MAESTROCTL_HOME`",
        ),
        Key(
            "max_size",
            size(1 << 16),
            "Size at which a log goes on in a new file.",
            field="max_bytes",
        ),
        Key(
            "keep",
            integer(0, 1000),
            "Older files kept of each log. A log whose beginning is gone cannot be replayed.",
        ),
    ),
    EventLogSpec,
)

PREDICTOR = Table(
    "[predictor]",
    "What is known of a stage before it runs: learned models in a process of their own, corrected"
    " by what this fleet's stages teach. Without the package extra `predict` only the latter.",
    (
        Key("enabled", BOOLEAN, "Start the process with the learned models."),
        Key(
            "artifact",
            TEXT,
            "File made by `maestroctl train` or `predictor add-model`; a relative path starts at"
            " the folder of this file.",
            absent="the one that ships",
        ),
        Key(
            "digest",
            TEXT,
            "What `artifact` must hash to, as `maestroctl train` prints it: `serve` does not start"
            " on another. It covers every byte that is read.",
            absent="whatever lies there",
        ),
        Key(
            "budget_ms",
            milliseconds(60),
            "How long a stage waits for its prediction at most; with a free slot it does not"
            " wait at all.",
            field="budget_s",
        ),
        Key(
            "refit_after_stages",
            integer(0, 1_000_000_000),
            "Calls after which the models are fitted again on this fleet's own history, in the"
            " background; what comes of it is asked only if it is better on the newest jobs. 0 ="
            " never.",
        ),
    ),
    PredictorSpec,
)
