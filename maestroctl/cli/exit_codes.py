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
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def exit_code_of(exc: BaseException) -> ExitCode:
    """The code of an error that reached the top of the command line."""
    if isinstance(exc, errors.ConfigError) and _is_in_use(exc.__cause__):
        return ExitCode.BUSY
    if _is_of_the_machine(exc):
        return ExitCode.FAILED
    for kind, code in TABLE:
        if isinstance(exc, kind):
            return code
    return ExitCode.BUG


def is_bug(exc: BaseException) -> bool:
    """Whether maestroctl is at fault, and not its caller, a peer or the machine."""
    return exit_code_of(exc) is ExitCode.BUG


def _is_of_the_machine(exc: BaseException) -> bool:
    """No room for the output or one more file, or a file that is named cannot be used."""
    return isinstance(exc, OSError) and (exc.errno in _NO_ROOM or exc.filename is not None)


def _is_in_use(cause: BaseException | None) -> bool:
    return isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
