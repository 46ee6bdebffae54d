"""The two products of `bench.predictor`, what is sent to them, and what they say they asked."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp

from maestroctl.testing.bench.http_client import Target
from maestroctl.testing.bench.own_home import link_home
from maestroctl.testing.bench.processes import BenchError, free_port, listens, module_argv, running
from maestroctl.testing.bench.stub_fleet import write_tiny_model

_ANSWER_S = 300.0
_READY_S = 60.0
_WORDS = ("the", "fox", "sees", "a", "red", "house", "and", "it", "runs", "on", "to", "sea")
_SHORT, _LONG = 20, 1500
_SAMPLE = re.compile(
    r'^maestroctl_predict_seconds_(?P<what>sum|count)\{stage="(?P<stage>\w+)"\} (?P<value>\S+)',
    re.M,
)
_STUB = ("--token-interval", "0.005", "--prefill-interval", "0.0001")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of load: what is asked for, by how many clients at once."""

    model: str
    clients: int


KINDS = {
    "idle": Kind("small", 1),
    "queue": Kind("small", 8),
    "choice": Kind("team", 1),
    "choice4": Kind("team", 4),
}
_MODELS = {"small": 4, "other": 4}
"""Name -> requests at once; alike, so that what the router picks changes no latency by itself."""


@dataclass(frozen=True, slots=True)
class Request:
    """One chat request: words of the prompt, limit of the answer in tokens."""

    prompt: str
    max_tokens: int


def make_requests(kind: str, round_number: int, count: int) -> list[Request]:
    """Prompts from 20 to 1,500 words, evenly on a logarithmic scale, in random order."""
    rng = random.Random(f"{kind}/{round_number}")
    ratio = _LONG / _SHORT
    lengths = [round(_SHORT * ratio ** (n / max(1, count - 1))) for n in range(count)]
    rng.shuffle(lengths)
    return [
        Request(" ".join(rng.choices(_WORDS, k=length)), rng.randint(16, 64)) for length in lengths
    ]


@dataclass(frozen=True, slots=True)
class Asked:
    """What asking the models took: seconds that stages waited, seconds beside, and how often."""

    waited_s: float = 0.0
    waited: int = 0
    beside_s: float = 0.0
    beside: int = 0

    def less(self, other: Asked) -> Asked:
        """What came after `other`."""
        return Asked(
            self.waited_s - other.waited_s,
            self.waited - other.waited,
            self.beside_s - other.beside_s,
            self.beside - other.beside,
        )


@dataclass(slots=True)
class Measured:
    """Everything of a run."""

    @dataclass(frozen=True, slots=True)
    class Block:
        """One kind on one side in one round; `served` counts requests by model."""

        kind: str
        enabled: bool
        round_number: int
        seconds: tuple[float, ...]
        asked: Asked
        served: Mapping[str, int] = field(default_factory=dict)

    requests: int
    rounds: int
    blocks: list[Block] = field(default_factory=list)
    latency_ms: dict[str, float | None] = field(default_factory=dict)
    answered: int = 0
    fallbacks: int = 0

    def add(self, block: Block) -> None:
        """One block more."""
        self.blocks.append(block)

    def of(self, kind: str, *, enabled: bool) -> list[Block]:
        """Blocks of a kind on one side, by round."""
        found = [b for b in self.blocks if b.kind == kind and b.enabled is enabled]
        return sorted(found, key=lambda block: block.round_number)


@dataclass(slots=True)
class Served:
    """One product while it runs."""

    url: str
    session: aiohttp.ClientSession
    enabled: bool

    async def call(self, model: str, request: Request) -> tuple[str, float]:
        """The model that answered a request, and seconds from sending it to the answer's end.

        Raises:
            BenchError: it failed.
        """
        body = {
            "model": model,
            "messages": [{"role": "user", "content": request.prompt}],
            "max_tokens": request.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        began_s = perf_counter()
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
            text = await answer.text()
        if answer.status != 200:
            raise BenchError(f"a request to {model} was answered {answer.status}: {text[:500]}")
        return answer.headers["X-Maestro-Model"], perf_counter() - began_s

    async def predictor_status(self) -> dict[str, Any]:
        """``service`` of the status."""
        async with self.session.get(f"{self.url}/api/predictor/status") as answer:
            return dict((await answer.json())["service"])

    async def asked(self) -> Asked:
        """From ``maestroctl_predict_seconds``."""
        async with self.session.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
        found = {
            (match["stage"], match["what"]): float(match["value"])
            for match in _SAMPLE.finditer(text)
        }
        return Asked(
            found.get(("waited", "sum"), 0.0),
            round(found.get(("waited", "count"), 0.0)),
            found.get(("went_on", "sum"), 0.0),
            round(found.get(("went_on", "count"), 0.0)),
        )

    async def warm_up(self) -> None:
        """Both engines are awake, and the models answer when there are any.

        Raises:
            BenchError: the predictor process does not come up.
        """
        for model in _MODELS:
            await self.call(model, Request("hello", 4))
        deadline_s = perf_counter() + _READY_S
        while self.enabled and not (await self.predictor_status())["predictions"]:
            if perf_counter() > deadline_s:
                raise BenchError("no prediction came: is `maestroctl[predict]` installed?")
            await self.call("team", Request("hello", 4))


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is served: two models of one source and a group of both.

    Attributes:
        folder: takes fleet files, state and logs. home: has the engines and models.
        engine: environment of the engine, or ``stub``.
    """

    folder: Path
    home: Path
    engine: str
    source: str

    def toml(self, *, enabled: bool) -> str:
        """The fleet file of one side."""
        stub = self.engine == "stub"
        source, kind = self.source, 'kind = "vllm-cpu"'
        if stub:
            source = f"path:{write_tiny_model(self.folder / 'tiny-model')}"
            kind += f'\npython = "{sys.executable}"\nversion = "0.32.0"'
            kind += '\nentrypoint = "maestroctl.testing.stub_engine"'
            kind += f"\nargs = {json.dumps(_STUB)}"
        side = self._side(enabled)
        lines = [
            f'[coordinator]\nstate = "sqlite:///{self.folder}/{side}.db"',
            f"[predictor]\nenabled = {json.dumps(enabled)}",
            '[policy]\nmodel_choice = "maestroctl"',
            '[[node]]\nname = "local"\nmemory = "8 GiB"',
            f"[engine.{self.engine}]\n{kind}",
        ]
        for model, at_once in _MODELS.items():
            lines += [
                f'[[model]]\nname = "{model}"\nsource = "{source}"\nengine = "{self.engine}"',
                f'max_model_len = 2048\nmax_batch = {at_once}\nkv_cache = "256 MiB"',
            ]
        lines += [f'[[group]]\nname = "team"\nmodels = {json.dumps(list(_MODELS))}']
        return "\n".join(lines) + "\n"

    @staticmethod
    def _side(enabled: bool) -> str:
        return "with" if enabled else "without"

    @asynccontextmanager
    async def serving(self, *, enabled: bool) -> AsyncIterator[Served]:
        """Serve one side, both its engines started.

        Raises:
            BenchError: it does not start or answer.
        """
        side = self._side(enabled)
        path = self.folder / f"{side}.toml"
        path.write_text(self.toml(enabled=enabled))
        target = Target(host="127.0.0.1", port=free_port())
        listen = f"{target.host}:{target.port}"
        argv = module_argv("maestroctl", "serve", str(path), "--listen", listen)
        env = {"MAESTROCTL_HOME": str(link_home(self.folder / side, self.home))}
        log = self.folder / f"{side}.log"
        async with (
            running(argv, log, lambda: listens(target), env=env),
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session,
        ):
            served = Served(f"http://{listen}", session, enabled)
            await served.warm_up()
            yield served
