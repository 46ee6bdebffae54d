"""Any OpenAI-compatible server by its own command line: llama.cpp, SGLang, TGI.

The command says where it listens by `${PORT}` (we pick a free one on loopback) or `${SOCKET}`; the
same words are replaced in the engine's environment variables. It must stay in the foreground.
After a start on a port, the listening socket is checked to belong to the process family: a port
taken meanwhile by somebody else's server would answer too.

Sleep and wake exist when the model names a request for each; they are believed only when the
memory reading falls and rises. Without them the node stops and starts the server.
"""

from __future__ import annotations

import socket
import string
from collections.abc import Mapping
from pathlib import Path

from maestroctl.domain.engine import EngineReadings, ResidencyTier
from maestroctl.domain.llm import HttpAction
from maestroctl.errors import CapabilityMissing, ConfigError, EngineError
from maestroctl.live.engine import environment
from maestroctl.live.engine.base import EngineAddress, EngineOrder, EngineState
from maestroctl.live.engine.capabilities import Capabilities, Capability
from maestroctl.live.engine.control import SLOW_S
from maestroctl.live.engine.identity import EngineIdentity
from maestroctl.live.engine.launch import LaunchSpec
from maestroctl.live.engine.logs import LogLimits
from maestroctl.live.engine.managed import ManagedEngine

# Nothing is known of such a server's weights; a sleep that frees less than this share of what it
# held is no sleep.
_LEAST_FREED_SHARE = 0.2


class CommandEngine(ManagedEngine):
    """One server started by the user's own command line."""

    def __init__(self, order: EngineOrder) -> None:
        super().__init__(order, _command_capabilities(order))
        self._is_asleep = False

    @property
    def _health_path(self) -> str:
        return self._order.model.health_path

    def _make_launch(self, kv_bytes: int) -> LaunchSpec:
        order = self._order
        path = environment.socket_path(order)
        words = {"SOCKET": str(path), "PORT": "0", "MODEL": str(order.model_dir or "")}
        uses_port = names_variable(order.model.command, order.engine.env, "PORT")
        uses_socket = names_variable(order.model.command, order.engine.env, "SOCKET")
        if not uses_port and not uses_socket:
            raise ConfigError(
                f"the command of model '{order.model.name}' does not say where it listens",
                hint="put ${PORT} or ${SOCKET} into `command`",
            )
        if uses_port:
            words["PORT"] = str(pick_free_port())
        env = environment.base_environment() | dict(order.engine.env)
        return LaunchSpec(
            engine=order.engine_id,
            model=order.model.name,
            generation=order.generation,
            argv=tuple(_fill(part, words) for part in order.model.command),
            env={name: _fill(value, words) for name, value in env.items()},
            state_dir=order.state_dir,
            log_path=environment.log_path(order),
            spec_hash=environment.spec_hash(order),
            socket_path=path if uses_socket else None,
            base_url="" if uses_socket else f"http://127.0.0.1:{words['PORT']}",
            kv_bytes=kv_bytes,
            devices=tuple(order.devices),
            cwd=Path.cwd(),
            log_limits=LogLimits(max_bytes=order.engine.log_max_bytes),
        )

    def _make_address(self, identity: EngineIdentity) -> EngineAddress:
        return EngineAddress(
            base_url=identity.base_url or "http://engine",
            model=self._order.served_name,
            socket_path=identity.socket_path or None,
            api_key=read_api_key(self._order.model.api_key_file),
        )

    async def read_state(self) -> EngineState:
        """Only what this side did to it is known."""
        return EngineState(is_sleeping=self._is_asleep, kv_pool_bytes=self._kv_pool_bytes)

    async def sleep(self, tier: ResidencyTier) -> EngineReadings:  # noqa: ARG002
        """Send the model's sleep request and wait until memory has come back."""
        action = self._require(self._order.model.sleep_action, "sleep")
        before = await self._read_held_bytes(await self.read_memory())
        await self._send(action)
        self._is_asleep = True
        self._kv_pool_bytes = 0
        # `_verify_freed` asks for half of what it is given.
        least_bytes = int(before * _LEAST_FREED_SHARE * 2)
        return await self._verify_freed(before, least_bytes, "sleep")

    async def wake(self) -> EngineReadings:
        """Send the model's wake request and have one token generated."""
        await self._send(self._require(self._order.model.wake_action, "wake"))
        await self.probe()
        self._is_asleep = False
        self._kv_pool_bytes = self._kv_start_bytes
        return await self.read_memory()

    def _require(self, action: HttpAction | None, what: str) -> HttpAction:
        if action is None:
            raise CapabilityMissing(f"model '{self._order.model.name}' names no {what} request")
        return action

    async def _send(self, action: HttpAction) -> None:
        if action.method.upper() == "GET":
            await self.control.get_text(action.path, limit_s=SLOW_S)
            return
        status, body = await self.control.post_status(action.path, {}, limit_s=SLOW_S)
        if status >= 400:
            raise EngineError(
                f"engine '{self.engine_id}': {action.method} {action.path} answered {status}: "
                f"{body[:300].strip()}"
            )


def pick_free_port() -> int:
    """A TCP port that nobody on loopback listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def names_variable(command: tuple[str, ...], env: Mapping[str, str], name: str) -> bool:
    """Whether `${NAME}` occurs in a command or in environment values."""
    return any("${" + name + "}" in text for text in (*command, *env.values()))


def read_api_key(path: str | None) -> str | None:
    """Key from a file: its first line that is not empty.

    Raises:
        ConfigError: the file cannot be read, is empty, others may read it, or no header can carry
            what it holds.
    """
    if path is None:
        return None
    file = Path(path).expanduser()
    try:
        mode = file.stat().st_mode
        lines = [line.strip() for line in file.read_text().splitlines() if line.strip()]
    except OSError as exc:
        raise ConfigError(f"the key file cannot be read: {exc.strerror}", file=path) from exc
    except UnicodeDecodeError:
        lines = ["\0"]
    if mode & 0o077:
        raise ConfigError("the key file may be read by others", file=path, hint=f"chmod 600 {path}")
    if not lines:
        raise ConfigError("the key file is empty", file=path)
    if not (lines[0].isascii() and lines[0].isprintable()):
        # The key itself is not shown.
        raise ConfigError(
            "the key file holds more than printable ASCII on its first line", file=path
        )
    return lines[0]


def _fill(text: str, words: Mapping[str, str]) -> str:
    """Replace our `${WORD}`s and leave every other dollar sign alone."""
    return string.Template(text).safe_substitute(words) if "${" in text else text


def _command_capabilities(order: EngineOrder) -> Capabilities:
    features = set[Capability]()
    if order.model.sleep_action is not None and order.model.wake_action is not None:
        features |= {Capability.SLEEP_HOST, Capability.SLEEP_DISK}
    if names_variable(order.model.command, order.engine.env, "SOCKET"):
        features.add(Capability.UNIX_SOCKET)
    return Capabilities("", frozenset(features))
