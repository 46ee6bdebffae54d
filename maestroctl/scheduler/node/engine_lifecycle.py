"""The life cycle of one engine: which status may follow which, and why. The only such table.

Theory of operation. An engine is a process that holds memory. Six statuses are *changing*: an
effect is in flight that takes or frees memory, and nobody else on the same device changes memory
meanwhile. The others are at rest. Requests are forwarded in ACTIVE and IDLE only (the difference
is whether one is open). DRAINING is the step between serving and giving way: nothing new is
forwarded, and when the last request has left the engine sleeps or stops. STOPPING is where every
engine goes whose state is not trusted any more; its memory stays booked until the host has seen
that the process is gone. SUSPENDED freezes open requests while weights and KV are gone.

`docs/lifecycles/engine.md` is drawn from `ALLOWED` by `docs/lifecycles/draw.py`; a test keeps it
current.
"""

from __future__ import annotations

from collections.abc import Mapping

from maestroctl.domain.engine import EngineStatus

S = EngineStatus

ALLOWED: Mapping[EngineStatus, Mapping[EngineStatus, str]] = {
    S.STOPPED: {
        S.STARTING: "a stage or a person wants it, memory booked",
        S.IDLE: "adopted awake",
        S.SLEEPING: "adopted asleep",
        S.SUSPENDED: "adopted suspended",
    },
    S.STARTING: {
        S.IDLE: "ready, verified",
        S.STOPPING: "start failed or was called off",
        S.STOPPED: "process gone before it was ready",
        S.FAILED: "process gone, third failure in a row or permanent",
    },
    S.IDLE: {
        S.ACTIVE: "a stage is forwarded",
        S.DRAINING: "has to give way, its device is busy",
        S.FALLING_ASLEEP: "gives way, ttl, or by hand",
        S.STOPPING: "gives way and cannot sleep, exit, or by hand",
    },
    S.ACTIVE: {
        S.IDLE: "last stage left",
        S.DRAINING: "has to give way",
        S.SUSPENDING: "requests frozen under pressure",
        S.STOPPING: "process exited",
    },
    S.DRAINING: {
        S.ACTIVE: "called off with stages open",
        S.IDLE: "called off",
        S.FALLING_ASLEEP: "last stage left",
        S.SUSPENDING: "requests frozen under pressure",
        S.STOPPING: "last stage left and it has to stop, or exit",
    },
    S.FALLING_ASLEEP: {
        S.SLEEPING: "memory came back, verified",
        S.STOPPING: "sleep failed, state not trusted",
        S.STOPPED: "process gone",
        S.FAILED: "process gone, third failure in a row or permanent",
    },
    S.SLEEPING: {
        S.WAKING: "a stage or a person wants it, memory booked",
        S.STOPPING: "context and host memory needed, exit, or by hand",
    },
    S.WAKING: {
        S.IDLE: "awake, verified",
        S.STOPPING: "wake failed, state not trusted",
        S.STOPPED: "process gone",
        S.FAILED: "process gone, third failure in a row or permanent",
    },
    S.SUSPENDING: {
        S.SUSPENDED: "memory came back, verified",
        S.STOPPING: "suspend failed, state not trusted",
        S.STOPPED: "process gone",
        S.FAILED: "process gone, third failure in a row or permanent",
    },
    S.SUSPENDED: {
        S.RESUMING: "its turn again, memory booked",
        S.STOPPING: "exit, or by hand",
    },
    S.RESUMING: {
        S.ACTIVE: "requests go on, verified",
        S.IDLE: "back, but every request had left",
        S.STOPPING: "resume failed, state not trusted",
        S.STOPPED: "process gone",
        S.FAILED: "process gone, third failure in a row or permanent",
    },
    S.STOPPING: {
        S.STOPPED: "process group gone, verified",
        S.FAILED: "gone, third failure in a row or permanent",
    },
    S.FAILED: {
        S.STOPPED: "cool-down over, or woken by hand",
    },
}


def is_allowed(start: EngineStatus, finish: EngineStatus) -> bool:
    """May an engine go from `start` to `finish`?"""
    return finish in ALLOWED[start]


def render_mermaid() -> str:
    """The table as a mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {S.STOPPED.name}"]
    for start, targets in ALLOWED.items():
        lines += [f"    {start.name} --> {finish.name}: {why}" for finish, why in targets.items()]
    return "\n".join(lines)


def render_page() -> str:
    """The whole of `docs/lifecycles/engine.md`."""
    rows = [
        f"| {start} | {finish} | {why} |"
        for start, targets in ALLOWED.items()
        for finish, why in targets.items()
    ]
    return "\n".join(
        [
            "# Life cycle of an engine",
            "",
            "Drawn from `maestroctl/scheduler/node/engine_lifecycle.py` by"
            " `python docs/lifecycles/draw.py`; do not edit by hand.",
            "",
            "```mermaid",
            render_mermaid(),
            "```",
            "",
            "| from | to | when |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )
