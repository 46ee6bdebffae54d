"""Command line of the stub engine.

The flags of vLLM that an adapter passes are accepted: those with a meaning here are honoured, the
others ignored. Flags of the stub itself have no counterpart in vLLM.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1024 * 1024
DEFAULT_VERSION = "0.32.0"
BLOCK_TOKENS = 16
"""Tokens per KV block, vLLM's default."""

_SIZE_SUFFIXES = {"k": 1024, "m": MIB, "g": 1024 * MIB, "t": 1024 * 1024 * MIB}


@dataclass(frozen=True, slots=True)
class StubOptions:
    """Everything that is fixed for the life of the process. Times in seconds, sizes in bytes."""

    model: str
    served_names: tuple[str, ...]
    uds: str | None
    host: str
    port: int
    version: str
    api_keys: tuple[str, ...]
    dev_mode: bool
    request_id_headers: bool
    force_include_usage: bool
    null_usage: bool
    max_model_len: int
    max_num_seqs: int
    priority_scheduling: bool
    tokens_per_chunk: int
    prefill_interval_s: float
    weights_bytes: int
    kv_bytes: int
    kv_bytes_per_token: int
    start_delay_s: float
    refuse_start: bool
    ignore_sigterm: bool
    drain_limit_s: float
    grandchild: str | None
    log_noise_kib: int
    # Initial values of what `faults.Faults` may change later.
    token_interval_s: float
    wake_delay_s: float
    exit_at_token: int
    cut_stream_at: int
    stall_at_token: int
    fail_before_first_byte: int
    lie_about_sleep: bool
    fail_wake: str | None
    return_memory_late_s: float
    plain_errors: bool

    @property
    def num_blocks(self) -> int:
        """KV blocks of the pool; a pool of no bytes counts as a large one, so it limits nothing."""
        if self.kv_bytes == 0:
            return 1 << 20
        return self.kv_bytes // (self.kv_bytes_per_token * BLOCK_TOKENS)


def parse_size(text: str) -> int:
    """Bytes from ``"1048576"``, ``"64M"``, ``"1g"``; suffixes are powers of 1024."""
    lowered = text.strip().lower().removesuffix("ib").removesuffix("b")
    factor = _SIZE_SUFFIXES.get(lowered[-1:], 1)
    number = lowered[:-1] if factor != 1 else lowered
    return int(float(number) * factor)


def parse_options(argv: Sequence[str]) -> StubOptions:
    """Options from a command line; exits with status 2 on a bad one, as argparse does."""
    args, unknown = _parser().parse_known_args([_dashes(arg) for arg in argv])
    if unknown:
        if not args.tolerate_unknown_flags:
            sys.exit(f"stub engine: unrecognized arguments: {' '.join(unknown)}")
        print(f"INFO stub engine ignores: {' '.join(unknown)}", file=sys.stderr)
    return _to_options(args)


def _dashes(arg: str) -> str:
    """vLLM takes ``--max_model_len`` for ``--max-model-len``."""
    if not arg.startswith("--"):
        return arg
    name, equals, value = arg.partition("=")
    return name.replace("_", "-") + equals + value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stub_engine", description=__doc__, allow_abbrev=False, add_help=True
    )
    _add_server_flags(parser)
    _add_engine_flags(parser)
    _add_fault_flags(parser)
    return parser


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--uds", help="serve on this Unix socket; an existing file is an error, as in vLLM")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000, help="0 picks a free one and prints it")
    add("--model", default="stub-model")
    add("--served-model-name", nargs="+", default=[])
    add("--api-key", nargs="+", default=[])
    add("--enable-request-id-headers", action="store_true")
    add("--enable-force-include-usage", action="store_true")
    add("--null-usage", action="store_true", help='"usage": null on chunks without usage')
    add("--version-string", default=DEFAULT_VERSION)
    add("--tolerate-unknown-flags", action=argparse.BooleanOptionalAction, default=True)


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--max-model-len", type=int, default=8192)
    add("--max-num-seqs", type=int, default=1024)
    add("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs")
    add("--token-interval", type=float, default=0.0, help="s per token of a sequence; 0 = at once")
    add("--prefill-interval", type=float, default=0.0, help="s per prompt token")
    add("--tokens-per-chunk", type=int, default=1, help="stream chunks are not tokens")
    add("--weights-mib", type=float, default=0.0)
    add("--kv-mib", type=float, default=None)
    add("--kv-cache-memory-bytes", type=parse_size, default=0)
    add("--kv-bytes-per-token", type=parse_size, default=64)
    add("--wake-delay", type=float, default=0.0)


def _add_fault_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--start-delay", type=float, default=0.0)
    add("--refuse-start", action="store_true")
    add("--exit-at-token", type=int, default=0, help="the process dies instead of the Nth token")
    add("--cut-stream-at", type=int, default=0, help="the connection is cut after N tokens")
    add("--stall-at-token", type=int, default=0, help="a sequence never gets past N tokens")
    add("--fail-before-first-byte", type=int, nargs="?", const=-1, default=0, metavar="TIMES")
    add("--ignore-sigterm", action="store_true")
    add("--drain-limit", type=float, default=20.0, help="s that SIGTERM waits for open requests")
    add("--fork-grandchild", nargs="?", const="group", choices=["group", "session"], default=None)
    add("--lie-about-sleep", action="store_true")
    add("--fail-wake", choices=["once", "always"], default=None)
    add("--return-memory-late", type=float, default=0.0)
    add("--plain-errors", action="store_true")
    add("--log-noise-kib", type=int, default=0)


def _to_options(args: argparse.Namespace) -> StubOptions:
    kv_bytes = args.kv_cache_memory_bytes if args.kv_mib is None else int(args.kv_mib * MIB)
    keys = args.api_key or [os.environ.get("VLLM_API_KEY", "")]
    return StubOptions(
        model=args.model,
        served_names=tuple(args.served_model_name) or (args.model,),
        uds=args.uds,
        host=args.host,
        port=args.port,
        version=args.version_string,
        api_keys=tuple(key for key in keys if key),
        dev_mode=os.environ.get("VLLM_SERVER_DEV_MODE", "1") != "0",
        request_id_headers=args.enable_request_id_headers,
        force_include_usage=args.enable_force_include_usage,
        null_usage=args.null_usage,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        priority_scheduling=args.scheduling_policy == "priority",
        tokens_per_chunk=max(1, args.tokens_per_chunk),
        prefill_interval_s=args.prefill_interval,
        weights_bytes=int(args.weights_mib * MIB),
        kv_bytes=kv_bytes,
        kv_bytes_per_token=args.kv_bytes_per_token,
        start_delay_s=args.start_delay,
        refuse_start=args.refuse_start,
        ignore_sigterm=args.ignore_sigterm,
        drain_limit_s=args.drain_limit,
        grandchild=args.fork_grandchild,
        log_noise_kib=args.log_noise_kib,
        token_interval_s=args.token_interval,
        wake_delay_s=args.wake_delay,
        exit_at_token=args.exit_at_token,
        cut_stream_at=args.cut_stream_at,
        stall_at_token=args.stall_at_token,
        fail_before_first_byte=args.fail_before_first_byte,
        lie_about_sleep=args.lie_about_sleep,
        fail_wake=args.fail_wake,
        return_memory_late_s=args.return_memory_late,
        plain_errors=args.plain_errors,
    )
