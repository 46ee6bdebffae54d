"""The artifact in the package. Its digest stands in this file, not beside it.

Trained by ``maestroctl train --licensed-only``: nothing from `NOT_SHIPPABLE` sources.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maestroctl.predict.model import PredictorModel

SHIPPED_PATH = Path(__file__).parent / "data" / "default.mpred"
SHIPPED_DIGEST = "f44c1ba3d5be3943f7be2f887fdcea2068a08a78a2ef4d38929e15da9b9f9e76"
MAX_SHIPPED_BYTES = 5_000_000


def load_shipped() -> PredictorModel:
    """The shipped model, verified against the digest in this file."""
    from maestroctl.predict.artifact import load_artifact

    return load_artifact(SHIPPED_PATH, digest=SHIPPED_DIGEST)
