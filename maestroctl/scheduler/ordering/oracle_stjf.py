"""`stjf` with the truth: what vLLM(STJF) is in Chimera's figures.

The same rule; a name of its own, so that a run with true totals is reported as one.
"""

from __future__ import annotations

from maestroctl.scheduler.ordering.stjf import Stjf


class OracleStjf(Stjf):
    """Size = true output tokens of this and all later stages, with aging."""
