"""The optional part of the package that the prediction commands need."""

from __future__ import annotations

from importlib.util import find_spec

from maestroctl.errors import PredictorError

_NEEDED = ("lightgbm", "numpy", "zstandard", "pyarrow")
INSTALL_COMMAND = "pip install 'maestroctl[predict]'"


def need_predict_extra() -> None:
    """Refuse a command that needs the extra where it is not installed.

    Raises:
        PredictorError: a library is missing; the hint is the command that installs it.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise PredictorError(
            f"this command needs {', '.join(missing)}, which is not installed",
            hint=INSTALL_COMMAND,
        )
