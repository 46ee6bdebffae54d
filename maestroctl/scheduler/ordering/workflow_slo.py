"""Ours: the order that keeps most deadlines; `slack` says how."""

from __future__ import annotations

from maestroctl.scheduler.ordering.slack import Slack


class WorkflowSlo(Slack):
    """By what predictors and the execution profile say."""
