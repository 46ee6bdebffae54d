"""Where maestroctl keeps what must outlive a process, unless a file says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

HOME_VARIABLE = "MAESTROCTL_HOME"
_SQLITE_HOME = "sqlite:///~"


def home_dir(environ: Mapping[str, str]) -> Path:
    """``$MAESTROCTL_HOME``, else ``~/.local/share/maestroctl``; it need not exist yet.

    ``$XDG_DATA_HOME`` takes the place of ``~/.local/share`` where it is set.
    """
    chosen = environ.get(HOME_VARIABLE, "").strip()
    if chosen:
        return Path(chosen).expanduser().absolute()
    data = environ.get("XDG_DATA_HOME", "").strip()
    base = Path(data) if data else _user_home(environ) / ".local" / "share"
    return base / "maestroctl"


def default_state_url(environ: Mapping[str, str]) -> str:
    """SQLite file in `home_dir`."""
    return f"sqlite:///{home_dir(environ) / 'state.db'}"


def expand_state_url(url: str, environ: Mapping[str, str]) -> str:
    """`url` with the ``~`` of an SQLite path replaced by the user's folder."""
    if url == _SQLITE_HOME or url.startswith(_SQLITE_HOME + "/"):
        return f"sqlite:///{_user_home(environ)}{url.removeprefix(_SQLITE_HOME)}"
    return url


def _user_home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "")
    return Path(home) if home else Path.home()
