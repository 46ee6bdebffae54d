"""Who may ask: API keys, and protection of the control API from web pages.

Keys are kept as SHA-256 digests. The digest of what was presented selects a stored one, which is
then compared in constant time; how long a look-up takes tells nothing about a key, because nobody
can choose digests. A key is never logged, echoed or put into a metric; its first eight hex digits
of digest name it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import socket
import stat
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from multidict import CIMultiDictProxy, istr

from maestroctl.errors import ConfigError, Unauthorized
from maestroctl.gateway.problems import Forbidden

_X_API_KEY = istr("X-Api-Key")
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_KEY = "coordinator.api_keys_file"
_NO_DIGEST = bytes(32)


class KeyRing:
    """The keys of one file; without a file everybody may ask.

    Args:
        digests: SHA-256 of each key; None = no keys are asked for.
    """

    def __init__(self, digests: frozenset[bytes] | None = None) -> None:
        self._digests = None if digests is None else {digest: digest for digest in digests}

    @property
    def required(self) -> bool:
        """A request without a key is refused."""
        return self._digests is not None

    @classmethod
    def load(cls, path: str | None) -> KeyRing:
        """Read a key file: one key per line, plain or ``sha256:HEX``; ``#`` starts a comment line.

        Raises:
            ConfigError: missing, unreadable, open to others, empty, or a malformed line.
        """
        if path is None:
            return cls()
        file = Path(path).expanduser()
        try:
            with file.open(encoding="utf-8") as handle:
                _check_mode(path, os.fstat(handle.fileno()))
                lines = handle.read().splitlines()
        except (OSError, UnicodeDecodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
            raise ConfigError(
                f"the API keys cannot be read: {reason}", file=path, key=_KEY
            ) from exc
        digests = frozenset(
            _digest_of_line(path, number, line.strip())
            for number, line in enumerate(lines, start=1)
            if line.strip() and not line.strip().startswith("#")
        )
        if not digests:
            raise ConfigError(
                "the file has no key, so nobody could ask",
                file=path,
                key=_KEY,
                hint="Write one key per line, plain or sha256:HEX.",
            )
        return cls(digests)

    def scope_of(self, headers: CIMultiDictProxy[str]) -> int:
        """Check the caller's key; callers with the same key get the same number.

        Raises:
            Unauthorized: a key is required, and there is none or an unknown one.
        """
        presented = _presented_key(headers)
        if self._digests is None:
            return hash(presented)
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        stored = self._digests.get(digest, _NO_DIGEST)
        if not hmac.compare_digest(stored, digest):
            raise Unauthorized(
                "the API key is unknown" if presented else "an API key is needed",
                hint="Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
            )
        return hash(digest)


def _presented_key(headers: CIMultiDictProxy[str]) -> str:
    value = headers.get(hdrs.AUTHORIZATION)
    if value is not None:
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer":
            return key.strip()
    return headers.get(_X_API_KEY, "").strip()


def _check_mode(path: str, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"the API keys can be read by others (mode {mode:04o})",
            file=path,
            key=_KEY,
            hint=f"chmod 600 {path}",
        )


def _digest_of_line(path: str, number: int, line: str) -> bytes:
    if line.lower().startswith("sha256:"):
        match = _HASHED.fullmatch(line)
        if match is None:
            raise ConfigError(
                "sha256: must be followed by 64 hex digits", file=path, line=number, key=_KEY
            )
        return bytes.fromhex(match[1])
    return hashlib.sha256(line.encode()).digest()


# --- web pages ----------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """`host` (a name or an address, no port) is this machine alone."""
    host = host.strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class BrowserGuard:
    """Keeps web pages away from the control API.

    A page may send simple requests to any address its reader can reach, and a page whose name is
    re-pointed to 127.0.0.1 (DNS rebinding) may even read the answers. So requests that change
    something must not come from another origin, and where the listener is loopback and no key is
    asked for, the host that was asked must be this machine.

    Args:
        check_host: the listener is loopback and keys are not required.
    """

    def __init__(self, *, check_host: bool) -> None:
        self._check_host = check_host
        self._own_name = socket.gethostname().lower()

    def check(self, request: web.BaseRequest) -> None:
        """Look at one request.

        Raises:
            Forbidden: a page of another origin, or a name that is not this machine's.
        """
        asked = request.headers.get(hdrs.HOST, "")
        host = _host_of(asked)
        if self._check_host and host and not is_loopback(host) and host != self._own_name:
            raise Forbidden(
                f"the control API of a loopback listener was asked as {host!r}",
                hint="Ask it as localhost, or set api_keys_file.",
            )
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or request.method in ("GET", "HEAD"):
            return
        if not asked or urlsplit(origin).netloc.lower() != asked.lower():
            raise Forbidden("requests from web pages of another origin are refused")


def _host_of(netloc: str) -> str:
    try:
        return (urlsplit(f"//{netloc}").hostname or "").lower()
    except ValueError:
        return netloc
