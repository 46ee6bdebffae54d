"""Kinds of value with an inner form: addresses, URLs, sources, requests, tables.

See also: `config.kinds` (plain text and numbers, and what a `Kind` is).
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from maestroctl.config.kinds import Kind, Mismatch, show_value
from maestroctl.config.kinds import read_text_value as _text
from maestroctl.domain.llm import HttpAction, ModelSource, SourceScheme


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the gateway listens."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _listen(value: Any) -> Listen:
    host, colon, port = _text(value).rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Mismatch(hint='write "127.0.0.1:8080"; port 0 takes a free one')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise Mismatch(hint='an IPv6 address stands in brackets: "[::1]:8080"')
    if any(char.isspace() or char in "/@" for char in host):
        raise Mismatch("the host is not a name or an address")
    return Listen(host, int(port))


def _show_listen(value: Listen) -> str:
    host = f"[{value.host}]" if ":" in value.host else value.host
    return show_value(f"{host}:{value.port}")


LISTEN = Kind('"HOST:PORT"', _listen, _show_listen)


def _ssh_host(value: Any) -> str:
    host = _text(value)
    # A leading dash would be read as an option by whoever passes it to a command.
    if host.startswith("-") or any(char.isspace() for char in host):
        raise Mismatch
    return host


SSH_HOST = Kind("an SSH destination: HOST, USER@HOST or a name of ~/.ssh/config", _ssh_host)


def _url(value: Any) -> str:
    text = _text(value)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        raise Mismatch(str(exc)) from exc
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise Mismatch
    if any(char.isspace() for char in text):
        raise Mismatch("it has a space")
    if parts.username is not None or parts.password is not None:
        raise Mismatch("it carries a user or a password", hint="put the key into a file")
    return text


URL = Kind('a URL such as "http://host:8000"', _url)


_REFERENCE = re.compile(r"[A-Za-z0-9][\w.\-/=<>~!,@\[\]]*")
"""A repository or a package with an optional version; never what looks like an option."""


def _source(value: Any) -> ModelSource:
    source = ModelSource.parse(_text(value))
    is_name = _REFERENCE.fullmatch(source.reference) is not None and ".." not in source.reference
    if source.scheme is not SourceScheme.PATH and not is_name:
        raise Mismatch(f"{source.reference!r} is not the name of a repository or package")
    return source


SOURCE = Kind('"hf:REPO", "path:FOLDER" or "pypi:PACKAGE"', _source, lambda v: show_value(str(v)))


def _http_action(value: Any) -> HttpAction:
    method, _, path = _text(value).partition(" ")
    path = path.strip()
    if method not in ("GET", "POST", "PUT", "DELETE") or not path.startswith("/"):
        raise Mismatch
    if any(char.isspace() for char in path):
        raise Mismatch("the path has a space")
    return HttpAction(method, path)


HTTP_ACTION = Kind(
    'a request such as "POST /sleep?level=1"',
    _http_action,
    lambda value: show_value(f"{value.method} {value.path}"),
)


def _environment(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise Mismatch
    for key, item in value.items():
        if not key or "=" in key or "\0" in key:
            raise Mismatch(f"{key!r} is not a variable name")
        if not isinstance(item, str):
            raise Mismatch(f"the value of {key} is not a text", hint="put it in quotes")
    return dict(value)


ENVIRONMENT = Kind(
    "a table of texts",
    _environment,
    lambda value: "{" + ", ".join(f'{key} = "***"' for key in sorted(value)) + "}",
    secret=True,
)


def _json_table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Mismatch
    check_json(value)
    return value


def check_json(value: Any) -> None:
    """Refuse what JSON cannot say: dates, and numbers that are not finite.

    Raises:
        Mismatch: names the value.
    """
    if isinstance(value, dict):
        for inner in value.values():
            check_json(inner)
    elif isinstance(value, list):
        for inner in value:
            check_json(inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise Mismatch(f"{value} has no form in JSON")
    elif not isinstance(value, (str, int, float, bool)):
        raise Mismatch(f"{value} has no form in JSON", hint="put it in quotes")


JSON_TABLE = Kind("a table", _json_table)
