"""The tables of ``fleet.toml``: one `Key` per thing a user may write.

See also: `config.fleet` (checks between keys and tables), `config.reference` (the page made from
this).
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from maestroctl.config.composed_kinds import (
    ENVIRONMENT,
    HTTP_ACTION,
    LISTEN,
    SOURCE,
    SSH_HOST,
    URL,
    Listen,
)
from maestroctl.config.kinds import (
    ARGUMENTS,
    BOOLEAN,
    TEXT,
    TEXTS,
    Kind,
    Mismatch,
    integer,
    milliseconds,
    name_of,
    names_of,
    number,
    one_of,
    seconds,
    show_value,
    size,
)
from maestroctl.config.tables import Key, Table
from maestroctl.domain.fleet import (
    ClusterSpec,
    CoordinatorSpec,
    EventLogSpec,
    GroupSpec,
    NodeSpec,
    PredictorSpec,
    ToolsSpec,
)
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSpec
from maestroctl.domain.policy import PolicySpec

_MIB = 1 << 20

# --- kinds of this file alone -------------------------------------------------------------------

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


# --- tables -------------------------------------------------------------------------------------

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
            "File made by `maestroctl train`; a relative path starts at the folder of this file.",
            absent="the one that ships",
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

ENGINE = Table(
    "[engine.NAME]",
    "A program that runs models, in an environment of its own. `default` is used by models that"
    " name no engine; `vllm`, `vllm-cpu`, `command` and `endpoint` exist without being written.",
    (
        Key(
            "kind",
            one_of(EngineKind),
            "What program it is.",
            absent="`default`: `vllm` where there is a CUDA device, else `vllm-cpu`; otherwise the"
            " name of the table",
        ),
        Key(
            "python", TEXT, 'Interpreter of its environment; "auto" is the one the installer made.'
        ),
        Key(
            "entrypoint",
            TEXT,
            "Module that is run as the server.",
            absent="the kind's own",
        ),
        Key("version", TEXT, "Version of the engine.", absent="asked of the environment"),
        Key("args", ARGUMENTS, "Arguments for every engine of this kind."),
        Key("env", ENVIRONMENT, "Environment variables for every engine of this kind."),
        Key("start_timeout_s", seconds(1), "Longest time from process start to ready."),
        Key("stop_grace_s", seconds(0, 3600), "Time from SIGTERM to SIGKILL."),
        Key(
            "log_max",
            size(4096),
            "Size at which the log file of an engine is rotated.",
            field="log_max_bytes",
        ),
    ),
    EngineSpec,
)

CLUSTER = Table(
    "[[cluster]]",
    "Machines that are near each other. The cluster `local` exists without being written.",
    (
        Key("name", name_of("cluster"), "Its name.", required=True),
        Key(
            "rtt_ms",
            milliseconds(60),
            "Round trip between the coordinator and the cluster.",
            field="rtt_s",
            absent="measured",
        ),
    ),
    ClusterSpec,
)

NODE = Table(
    "[[node]]",
    "A machine that runs engines. Without any, this machine is the fleet.",
    (
        Key("name", name_of("node"), "Its name.", required=True),
        Key("cluster", name_of("cluster"), "The cluster it belongs to."),
        Key("host", SSH_HOST, "How SSH reaches it.", absent="this machine"),
        Key(
            "memory",
            size(64 * _MIB, auto=True),
            "What models may use on each device.",
            field="memory_bytes",
            absent='"auto": measured at start',
        ),
        Key(
            "host_memory",
            size(0, auto=True),
            "Host memory that sleeping weights may use.",
            field="host_memory_bytes",
            absent='"auto": measured at start',
        ),
        Key("models", names_of("model"), "Models it may run.", absent="every model"),
        Key(
            "threads",
            integer(1, 4096),
            "CPU threads shared by the engines that are awake.",
            absent="every core",
        ),
        Key(
            "linger_s",
            seconds(),
            "How long its daemon keeps the engines after the coordinator is gone.",
        ),
    ),
    NodeSpec,
)

GROUP = Table(
    "[[group]]",
    "A name that stands for several models: the router picks one. `auto` means all models and"
    " exists without being written.",
    (
        Key("name", name_of("group"), "What clients ask for.", required=True),
        Key("models", names_of("model", least=1), "Its models, best first.", required=True),
    ),
    GroupSpec,
)

MODEL = Table(
    "[[model]]",
    "A served model. At least one is needed.",
    (
        Key("name", name_of("model"), "What clients ask for.", required=True),
        Key(
            "source",
            SOURCE,
            "Where its weights are. Needed for `vllm` and `vllm-cpu`.",
            absent="none",
        ),
        Key("engine", name_of("engine"), "The `[engine.NAME]` that runs it."),
        Key("aliases", names_of("model alias"), "Further names clients may use."),
        Key(
            "max_model_len",
            integer(16, 100_000_000),
            "Longest prompt and output together, in tokens.",
            absent="the model's own",
        ),
        Key("max_batch", integer(1, 65536), "Sequences that decode at once."),
        Key(
            "kv_cache",
            size(_MIB),
            "Size of the KV cache of one engine.",
            field="kv_cache_bytes",
            absent="from `max_model_len` and `max_batch`",
        ),
        Key("engine_args", ARGUMENTS, "Further arguments of the engine."),
        Key("tensor_parallel", integer(1, 1024), "Devices that one engine is split over."),
        Key(
            "ttl",
            seconds(1),
            "It sleeps after being idle this long.",
            field="ttl_s",
            absent="it sleeps only when memory is needed",
        ),
        Key("pin", BOOLEAN, "It never gives way to another model."),
        Key(
            "memory",
            size(_MIB),
            "Device memory of a `command` engine, KV cache included; needed there.",
            field="memory_bytes",
            absent="none",
        ),
        Key(
            "command",
            ARGUMENTS,
            "Command line of a `command` engine, with `${PORT}` or `${SOCKET}`.",
            absent="none",
        ),
        Key("health_path", TEXT, "Path that answers 200 once a `command` engine is up."),
        Key(
            "sleep",
            HTTP_ACTION,
            "Request that makes a `command` engine give its memory back.",
            field="sleep_action",
            absent="it is stopped instead",
        ),
        Key(
            "wake",
            HTTP_ACTION,
            "Request that brings it back; needed with `sleep`.",
            field="wake_action",
            absent="none",
        ),
        Key(
            "url",
            URL,
            "Base URL of an `endpoint`, or of an engine that already runs.",
            absent="none",
        ),
        Key(
            "api_key_file",
            TEXT,
            "File with the key that `url` wants; a relative path starts at the folder of this"
            " file.",
            absent="none",
        ),
        Key(
            "upstream_name",
            TEXT,
            "What the engine behind it calls the model.",
            absent="`name`",
        ),
        Key(
            "profile",
            TEXT,
            "File with its costs, as `maestroctl profile` writes them; a relative path starts at"
            " the folder of this file.",
            absent="the file of this model and the node's device below `profiles/`,"
            " `$MAESTROCTL_HOME/profiles` or what comes with maestroctl; else an estimate from the"
            " model's geometry",
        ),
    ),
    ModelSpec,
)

SINGLE_TABLES = {
    "coordinator": COORDINATOR,
    "policy": POLICY,
    "tools": TOOLS,
    "event_log": EVENT_LOG,
    "predictor": PREDICTOR,
}
LIST_TABLES = {"cluster": CLUSTER, "node": NODE, "group": GROUP, "model": MODEL}
ALL_TABLES = (
    *(COORDINATOR, POLICY, TOOLS, EVENT_LOG, PREDICTOR),
    *(ENGINE, CLUSTER, NODE, GROUP, MODEL),
)
TOP_LEVEL = (*SINGLE_TABLES, "engine", *LIST_TABLES)
