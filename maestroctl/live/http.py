"""Client sessions for the two hops: no cookies, no time limits of their own, bytes left alone."""

from __future__ import annotations

import aiohttp

_SKIPPED_HEADERS = ("User-Agent", "Accept", "Accept-Encoding")
_NO_LIMIT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=10.0, sock_read=None)


def relay_session(socket_path: str | None, *, read_bufsize: int = 1 << 16) -> aiohttp.ClientSession:
    """A session to one peer, over its Unix socket or over TCP.

    There is no limit on connections: the scheduler bounds what is in flight. A stage may wait for
    minutes (a wake, a suspension), so nothing times out here either; the other side's end shows as
    a closed connection.
    """
    connector: aiohttp.BaseConnector = (
        aiohttp.UnixConnector(path=socket_path, limit=0, keepalive_timeout=60)
        if socket_path is not None
        else aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=_NO_LIMIT,
        auto_decompress=False,
        raise_for_status=False,
        read_bufsize=read_bufsize,
        skip_auto_headers=_SKIPPED_HEADERS,
    )
