"""What a fleet has learned of its calls, read beside the coordinator that may be running."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maestroctl.config.home import default_state_url, expand_state_url, home_dir
from maestroctl.errors import MaestroError, PredictorError

if TYPE_CHECKING:
    from maestroctl.predict.model import PredictorModel
    from maestroctl.predict.recalibration import OnlineState


@dataclass(frozen=True, slots=True)
class Learned:
    """Attributes: running figures, and the model fitted on own history; None = there is none."""

    state: OnlineState | None
    local: PredictorModel | None


def state_url(named: str | None) -> str:
    """URL of the state database: as named, as in ``MAESTROCTL_STATE``, or in the data folder."""
    named = named or os.environ.get("MAESTROCTL_STATE")
    return expand_state_url(named, os.environ) if named else default_state_url(os.environ)


def read_learned(named: str | None) -> Learned:
    """What there is; nothing of a fleet that was never started.

    Args:
        named: URL of a state database, which must then be there; None = the usual one.

    Raises:
        StoreError: the one that was named cannot be read.
        SchemaMismatch: another version wrote it.
    """
    from maestroctl.live.coordinator.online_store import read_online
    from maestroctl.live.coordinator.predictor_service import LOCAL_MODEL
    from maestroctl.predict.artifact import load_artifact
    from maestroctl.store.reader import StateReader

    state = local = None
    allowed = contextlib.nullcontext() if named else contextlib.suppress(MaestroError)
    with allowed, StateReader.open(state_url(named)) as store:
        state = read_online(store)
    with contextlib.suppress(PredictorError):  # missing, or of another version: `serve` goes on too
        local = load_artifact(home_dir(os.environ) / LOCAL_MODEL)
    return Learned(state, local)
