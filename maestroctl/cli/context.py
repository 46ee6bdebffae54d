"""What every command of one process shares."""

from __future__ import annotations

from maestroctl.cli.terminal import Terminal

terminal = Terminal()
"""Owned by the process; the top-level options set how much it says."""
