"""One engine process each: how it is started, watched, put to sleep, woken and stopped.

Covers one engine at a time. Which engine should be awake, and whether its memory fits, is decided
elsewhere (`maestroctl.scheduler`); who calls these methods, and in what order, is the node daemon's
business (`maestroctl.live.node_daemon`).

See also: `process` (the operating-system side), `base` (the protocol), `vllm`, `command` and
`endpoint` (the three kinds), `capabilities` (what each vLLM version can do).
"""
