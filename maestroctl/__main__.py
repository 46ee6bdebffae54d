"""The ``maestroctl`` command, and ``python -m maestroctl``.

The command line takes a fifth of a second to load; a Ctrl-C meanwhile ends it as quietly as later.
So does one that comes while Python takes itself apart, as a second Ctrl-C does.
"""

import signal
import sys

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def run() -> None:
    """Load the command line and run it."""
    try:
        from maestroctl.cli.main import run as run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    run()
