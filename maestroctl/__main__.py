"""``python -m maestroctl`` is the same as the ``maestroctl`` command."""

from maestroctl.cli.main import run

if __name__ == "__main__":
    run()
