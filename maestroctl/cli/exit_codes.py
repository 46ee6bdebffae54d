"""Exit codes, in one table; ``maestroctl --help`` prints it."""

from __future__ import annotations

import errno
from enum import IntEnum

from maestroctl import errors


class ExitCode(IntEnum):
    """What the process exits with."""

    OK = 0
    FAILED = 1
    """The job, or what was asked for, failed."""
    USAGE = 2
    """Wrong arguments, or a mistake in a file."""
    UNREACHABLE = 3
    """No coordinator, node or engine answers."""
    BUSY = 4
    """Another process owns what is needed: state, port."""
    BUG = 70
    """A bug of maestroctl."""
    INTERRUPTED = 130
    """Ctrl-C."""


TABLE: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (errors.ConfigError, ExitCode.USAGE),
    (errors.InvalidRequest, ExitCode.USAGE),
    (errors.UnknownModel, ExitCode.USAGE),
    (errors.StateLocked, ExitCode.BUSY),
    (errors.FleetError, ExitCode.UNREACHABLE),
    (errors.InvariantViolation, ExitCode.BUG),
    (errors.MaestroError, ExitCode.FAILED),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
)
"""First match wins."""


def exit_code_of(exc: BaseException) -> ExitCode:
    """The code of an error that reached the top of the command line."""
    if isinstance(exc, errors.ConfigError) and _is_in_use(exc.__cause__):
        return ExitCode.BUSY
    for kind, code in TABLE:
        if isinstance(exc, kind):
            return code
    return ExitCode.BUG


def _is_in_use(cause: BaseException | None) -> bool:
    return isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
