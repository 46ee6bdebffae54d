"""Where the state is: a database URL to a file with tight modes.

``sqlite:///~/state.db`` or ``sqlite:////var/lib/x.db?synchronous=FULL``; an empty URL means the
user's data folder. Another database than SQLite is refused by name until it is supported.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from maestroctl.errors import StoreError

_SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
_HINT = "write sqlite:///PATH/state.db, with ?synchronous=FULL to survive a power loss"


@dataclass(frozen=True, slots=True)
class StateLocation:
    """A parsed state URL.

    Attributes:
        path: of the database file, ``~`` expanded.
        synchronous: SQLite's setting. NORMAL survives the death of processes, FULL a power loss.
    """

    path: Path
    synchronous: str = "NORMAL"

    def make(self) -> None:
        """Create the folder (0700) and an empty file (0600) where they are missing.

        Raises:
            StoreError: no permission, or something else is in the way.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite gives its -wal and -shm files the mode of the database file.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(
                f"opening the state {self.path}: {error.strerror}",
                hint="check the permissions of the folder, or set [coordinator] state",
            ) from error


def default_state_url() -> str:
    """The user's data folder: ``$XDG_DATA_HOME`` or ``~/.local/share``."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return f"sqlite:///{base}/maestroctl/state.db"


def parse_state_url(url: str) -> StateLocation:
    """Read a state URL; empty = `default_state_url`.

    Raises:
        StoreError: not a URL, not SQLite, no file, or an unknown option.
    """
    try:
        parsed = sa.make_url(url or default_state_url())
    except (sa.exc.ArgumentError, ValueError) as error:
        raise StoreError(f"the state URL {url!r} is not a URL", hint=_HINT) from error
    backend = parsed.get_backend_name()
    if backend != "sqlite":
        raise StoreError(f"the state URL names {backend!r}; only sqlite is supported", hint=_HINT)
    if not parsed.database or parsed.database == ":memory:":
        raise StoreError("the state must outlive the process: name a file", hint=_HINT)
    options = dict(parsed.query)
    synchronous = str(options.pop("synchronous", "NORMAL")).upper()
    if options or synchronous not in _SYNCHRONOUS:
        what = ", ".join(sorted(options)) or f"synchronous={synchronous}"
        raise StoreError(
            f"the state URL has an option that is not known: {what}",
            hint=f"known: synchronous={'|'.join(_SYNCHRONOUS)}",
        )
    return StateLocation(Path(parsed.database).expanduser().absolute(), synchronous)
