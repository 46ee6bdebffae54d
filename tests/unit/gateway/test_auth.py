"""Keys and web pages."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict, CIMultiDictProxy

from maestroctl.errors import ConfigError, Unauthorized
from maestroctl.gateway.auth import BrowserGuard, KeyRing, is_loopback
from maestroctl.gateway.problems import Forbidden

SECRET = "sk-very-secret"


def headers(**values: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict({k.replace("_", "-"): v for k, v in values.items()}))


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    file = tmp_path / "keys.txt"
    hashed = hashlib.sha256(b"sk-hashed").hexdigest()
    file.write_text(f"# team\n{SECRET}\n\n  sk-second  \nsha256:{hashed}\n")
    file.chmod(0o600)
    return KeyRing.load(str(file))


@pytest.mark.parametrize("key", [SECRET, "sk-second", "sk-hashed"])
def test_known_keys_pass_both_ways(keys: KeyRing, key: str) -> None:
    bearer = keys.scope_of(headers(Authorization=f"Bearer {key}"))
    assert bearer == keys.scope_of(headers(x_api_key=key))
    assert bearer == keys.scope_of(headers(Authorization=f"bearer  {key} "))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {SECRET}"},
        {"x_api_key": SECRET + "x"},
        {"x_api_key": "sha256:" + hashlib.sha256(b"sk-hashed").hexdigest()},
        {"x_api_key": "# team"},
        {"Authorization": "Bearer \udcff"},
    ],
    ids=range(8),
)
def test_others_are_refused_without_an_echo(keys: KeyRing, given: dict[str, str]) -> None:
    with pytest.raises(Unauthorized) as caught:
        keys.scope_of(headers(**given))
    assert "wrong" not in str(caught.value)
    assert SECRET not in f"{caught.value} {caught.value.hint}"


def test_keys_have_scopes_of_their_own(keys: KeyRing) -> None:
    assert keys.scope_of(headers(x_api_key=SECRET)) != keys.scope_of(headers(x_api_key="sk-second"))


def test_without_a_file_everybody_passes_and_keys_still_tell_callers_apart() -> None:
    ring = KeyRing.load(None)
    assert not ring.required
    assert ring.scope_of(headers()) != ring.scope_of(headers(x_api_key="a"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o660])
def test_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(SECRET)
    file.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        KeyRing.load(str(file))
    assert caught.value.hint == f"chmod 600 {file}"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"", None), (b"# only\n", None), (b"ok\nsha256:12\n", 2), (b"\xff\xfe", None)],
    ids=["empty", "comments", "bad hash", "not text"],
)
def test_unusable_file_is_refused(tmp_path: Path, content: bytes, line: int | None) -> None:
    file = tmp_path / "keys.txt"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        KeyRing.load(str(file))
    assert caught.value.line == line


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        KeyRing.load(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("app.localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("evil.com", False),
        ("localhost.evil.com", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
def test_loopback_names(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def check(method: str, *, host: str, origin: str | None = None, check_host: bool = True) -> None:
    sent = {"Host": host} | ({"Origin": origin} if origin else {})
    BrowserGuard(check_host=check_host).check(make_mocked_request(method, "/api/jobs", sent))


@pytest.mark.parametrize(
    ("method", "host", "origin"),
    [
        ("POST", "127.0.0.1:8080", "http://evil.com"),
        ("POST", "127.0.0.1:8080", "null"),
        ("POST", "localhost:8080", "http://localhost:3000"),
        ("DELETE", "localhost:8080", "http://evil.com"),
        ("POST", "evil.com:8080", "http://evil.com:8080"),
        ("GET", "evil.com", None),
        ("GET", "evil.com:99999999", None),
    ],
)
def test_pages_of_other_origins_are_refused(method: str, host: str, origin: str | None) -> None:
    with pytest.raises(Forbidden):
        check(method, host=host, origin=origin)


@pytest.mark.parametrize(
    ("method", "host", "origin"),
    [
        ("POST", "127.0.0.1:8080", None),
        ("POST", "localhost:8080", "http://localhost:8080"),
        ("POST", "[::1]:8080", None),
        ("GET", "localhost:8080", "http://elsewhere.com"),
        ("GET", "", None),
    ],
)
def test_programs_and_own_pages_pass(method: str, host: str, origin: str | None) -> None:
    check(method, host=host, origin=origin)


def test_other_names_pass_where_keys_are_asked_for() -> None:
    check("POST", host="gateway.example.org", check_host=False)
