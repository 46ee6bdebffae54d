"""``python -m maestroctl.testing.stub_engine``."""

from __future__ import annotations

import sys

from maestroctl.testing.stub_engine.app import main

if __name__ == "__main__":
    sys.exit(main())
