"""How soon an engine can serve (Maestro Eq 6): T_ready = T_q + T_act (+ RTT).

T_act is read from the profile, where it is measured or made of Size / BW_tier + a fixed part
(`transfer`, `profile_from_geometry`). T_q, the predicted time until a slot frees, comes from
whoever knows the queue.
"""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.llm import ModelProfile


def estimate_activation_s(
    profile: ModelProfile, status: EngineStatus, elapsed_s: float = 0.0
) -> float:
    """T_act: predicted seconds until an engine in `status` is awake, were it asked to now.

    Args:
        profile: of the model.
        status: where the engine is.
        elapsed_s: seconds spent in that status; shortens what a transition still takes.

    Returns:
        0 while awake; never negative. Waiting for memory is not part of it.
    """
    left = {
        EngineStatus.ACTIVE: 0.0,
        EngineStatus.IDLE: 0.0,
        EngineStatus.STOPPED: profile.cold_start_s,
        EngineStatus.FAILED: profile.cold_start_s,
        EngineStatus.STARTING: max(0.0, profile.cold_start_s - elapsed_s),
        EngineStatus.STOPPING: profile.cold_start_s,
        EngineStatus.DRAINING: profile.sleep_s + profile.wake_s,
        EngineStatus.FALLING_ASLEEP: max(0.0, profile.sleep_s - elapsed_s) + profile.wake_s,
        EngineStatus.SUSPENDING: max(0.0, profile.sleep_s - elapsed_s) + profile.wake_s,
        EngineStatus.SLEEPING: profile.wake_s,
        EngineStatus.SUSPENDED: profile.wake_s,
        EngineStatus.WAKING: max(0.0, profile.wake_s - elapsed_s),
        EngineStatus.RESUMING: max(0.0, profile.wake_s - elapsed_s),
    }
    return left[status]


def estimate_ready_s(queue_s: float, activation_s: float, rtt_s: float = 0.0) -> float:
    """T_ready = T_q + T_act + RTT, seconds."""
    return queue_s + activation_s + rtt_s
