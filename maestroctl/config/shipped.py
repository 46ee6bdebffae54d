"""Files that come with maestroctl: example workflows and profiles.

In a checkout they lie at the top of the repository, in an installed package under ``_shipped``.
"""

from __future__ import annotations

from pathlib import Path

import maestroctl
from maestroctl.errors import ConfigError

_PACKAGE = Path(maestroctl.__file__).resolve().parent


def shipped_dir(name: str) -> Path:
    """Folder of shipped files.

    Args:
        name: ``workflows`` or ``profiles``.

    Raises:
        ConfigError: the installation is incomplete.
    """
    for folder in (_PACKAGE / "_shipped" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise ConfigError(
        f"the {name} that come with maestroctl are not there", hint="install maestroctl again"
    )


def shipped_workflows() -> dict[str, Path]:
    """Example workflows by name (``serial``, ``code_review``, ...), in order of their names."""
    return {path.stem: path for path in sorted(shipped_dir("workflows").glob("*.toml"))}
