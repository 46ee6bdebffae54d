"""A `MAESTROCTL_HOME` of a benchmark's own: installed things of another in it, nothing learned."""

from __future__ import annotations

from pathlib import Path

_INSTALLED = ("engines", "models")


def link_home(home: Path, installed: Path) -> Path:
    """Make `home` where it is not there, with the engines and models of `installed` in it.

    Returns:
        `home`.
    """
    home.mkdir(parents=True, exist_ok=True)
    for name in _INSTALLED:
        if (installed / name).is_dir() and not (home / name).exists():
            (home / name).symlink_to((installed / name).absolute())
    return home
