"""One engine of a simulated node: its process, and the transition in flight.

Transitions take the times of the profile and always succeed; readings are what the profile says.
How its stages come along while it is up is the matter of `engine_model`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, assert_never

from maestroctl.domain.engine import EngineReadings
from maestroctl.domain.ids import DeviceName
from maestroctl.domain.llm import ModelProfile
from maestroctl.scheduler.effects import (
    ResumeEngine,
    SleepEngine,
    StartEngine,
    StopEngine,
    SuspendEngine,
    WakeEngine,
)
from maestroctl.scheduler.events import TransitionFinished
from maestroctl.sim.device import Device
from maestroctl.sim.engine_model import EngineModel
from maestroctl.sim.loop import EventLoop, Handle
from maestroctl.sim.prefix_cache import PrefixCache

if TYPE_CHECKING:
    from maestroctl.sim.relay import SimRelay

STOP_S = 0.5
"""From SIGTERM to the group being gone; profiles do not measure it."""

EngineEffect = StartEngine | WakeEngine | SleepEngine | SuspendEngine | ResumeEngine | StopEngine


class SimEngine:
    """Made once, whether it is up or not.

    Args:
        devices: of the node, by name.
        relay: told of what its stages come to.
        post: told when a transition is carried out.
        max_num_seqs, max_num_batched_tokens: as for `EngineModel`.

    Attributes:
        model: None while there is no process.
        cache: what it still holds of earlier prompts.
    """

    __slots__ = (
        "_activated",
        "_activated_s",
        "_devices",
        "_kv_limit_bytes",
        "_loop",
        "_max_num_batched_tokens",
        "_max_num_seqs",
        "_on_devices",
        "_past_busy_s",
        "_past_preempted",
        "_pending",
        "_post",
        "_profile",
        "_relay",
        "cache",
        "model",
    )

    def __init__(
        self,
        loop: EventLoop,
        profile: ModelProfile,
        devices: Mapping[DeviceName, Device],
        relay: SimRelay,
        post: Callable[[TransitionFinished], None],
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        self.model: EngineModel | None = None
        self.cache = PrefixCache()
        self._loop = loop
        self._profile = profile
        self._devices = devices
        self._relay = relay
        self._post = post
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._on_devices: tuple[DeviceName, ...] = ()
        self._kv_limit_bytes = profile.kv_pool_bytes
        self._pending: Handle | None = None  # end of the transition
        self._activated = ("", 0.0)  # kind and seconds of the last start or wake
        self._activated_s = -math.inf
        self._past_busy_s = 0.0  # of processes that are gone; likewise `_past_preempted`
        self._past_preempted = 0

    @property
    def busy_s(self) -> float:
        """Seconds in which it ran iterations."""
        return self._past_busy_s + (self.model.busy_s if self.model is not None else 0.0)

    @property
    def num_preempted(self) -> int:
        """Recompute preemptions."""
        return self._past_preempted + (self.model.num_preempted if self.model is not None else 0)

    def activation_since(self, since_s: float) -> tuple[str, float] | None:
        """What a stage that was offered at `since_s` waited for: kind and seconds."""
        if self._activated_s <= since_s:
            return None
        kind, seconds = self._activated
        return kind, min(seconds, self._activated_s - since_s)

    def begin(self, effect: EngineEffect) -> None:
        """Begin a transition; a stop supersedes what is under way."""
        if self._pending is not None:
            self._pending.cancel()
        profile = self._profile
        match effect:
            case StartEngine():
                self._on_devices = effect.devices
                self._kv_limit_bytes = effect.kv_limit_bytes
                seconds = profile.cold_start_s
            case WakeEngine() | ResumeEngine():
                seconds = profile.wake_s
            case SleepEngine():
                seconds = profile.sleep_s
                self.cache.clear()
            case SuspendEngine():
                seconds = profile.sleep_s
                self.cache.clear()
                assert self.model is not None
                self._loop.after(0.0, self.model.suspend)
            case StopEngine():
                seconds = STOP_S
                if self.model is not None:
                    self._remove_model(self.model)
            case _:
                assert_never(effect)
        self._pending = self._loop.after(seconds, self._end, effect, seconds)

    def _end(self, effect: EngineEffect, seconds: float) -> None:
        """A transition is carried out; say what is read back."""
        self._pending = None
        profile = self._profile
        device_bytes, host_bytes = profile.awake_bytes + self._kv_limit_bytes, 0
        match effect:
            case StartEngine():
                self.model = self._make_model()
                self._note("start", seconds)
            case WakeEngine():
                self._note("wake", seconds)
            case ResumeEngine():
                self._note("resume", seconds)
                assert self.model is not None
                self.model.resume()
            case SleepEngine() | SuspendEngine():
                device_bytes, host_bytes = profile.context_bytes, profile.host_asleep_bytes
            case StopEngine():
                device_bytes = 0
            case _:
                assert_never(effect)
        readings = EngineReadings(device_bytes * max(1, len(self._on_devices)), host_bytes)
        self._post(
            TransitionFinished(
                effect.engine_id, effect.generation, effect.effect_id, readings, seconds
            )
        )

    def _note(self, kind: str, seconds: float) -> None:
        self._activated = (kind, seconds)
        self._activated_s = self._loop.now_s

    def set_kv_limit(self, kv_limit_bytes: int) -> None:
        """Another KV limit, up or not."""
        self._kv_limit_bytes = kv_limit_bytes
        if self.model is not None:
            self.model.set_kv_tokens(self._kv_tokens())

    def _kv_tokens(self) -> float:
        if self._profile.kv_bytes_per_token <= 0:
            return math.inf
        return self._kv_limit_bytes // self._profile.kv_bytes_per_token

    def _make_model(self) -> EngineModel:
        device = self._on_devices[0] if self._on_devices else next(iter(self._devices))
        return EngineModel(
            self._loop,
            self._devices[device],
            self._profile.iteration,
            max_num_seqs=self._max_num_seqs,
            max_num_batched_tokens=self._max_num_batched_tokens,
            kv_tokens=self._kv_tokens(),
            on_first_token=self._relay.first_token,
            on_finish=self._relay.finish,
            on_gone=self._relay.gone,
            on_outgrow=self._relay.outgrow,
        )

    def _remove_model(self, model: EngineModel) -> None:
        model.close()
        self._past_busy_s += model.busy_s
        self._past_preempted += model.num_preempted
        self.model = None
        self.cache.clear()
        self._relay.drop_aborted(self)
