"""Tables of ``fleet.toml`` about what is served, and where: from engines to models.

See also: `config.service_tables` (the service itself), `config.fleet_tables` (all of them).
"""

from __future__ import annotations

from maestroctl.config.composed_kinds import (
    ENVIRONMENT,
    HTTP_ACTION,
    SOURCE,
    SSH_HOST,
    URL,
)
from maestroctl.config.kinds import (
    ARGUMENTS,
    BOOLEAN,
    TEXT,
    integer,
    milliseconds,
    name_of,
    names_of,
    one_of,
    seconds,
    size,
)
from maestroctl.config.tables import Key, Table
from maestroctl.domain.fleet import (
    ClusterSpec,
    GroupSpec,
    NodeSpec,
)
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSpec

_MIB = 1 << 20

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
