"""Turn a GGUF file into the folder of safetensors that vLLM loads.

Run by path, by the python of an engine environment: `python gguf_convert_script.py FILE.gguf OUT`.
maestroctl is not installed there, so nothing of it is imported, and nothing imports this file.
Progress and the result are printed as lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def say(**fields: Any) -> None:
    """Print one line of progress."""
    print(json.dumps(fields), flush=True)


def main(gguf_path: str, out_dir: str) -> None:
    """Read weights and tokenizer from the GGUF file and write them as a model folder."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = os.path.split(gguf_path)
    say(step="tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    say(step="weights")
    options: dict[str, Any] = {"gguf_file": name, "dtype": torch.bfloat16}
    try:
        from transformers import GgufConfig
    except ImportError:
        pass  # older versions always dequantize
    else:
        options["quantization_config"] = GgufConfig(gguf_file=name, dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    # The weights are plain bfloat16 now; a leftover entry would make vLLM look for GGUF again.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    say(step="save")
    model.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
    say(step="done", parameters=sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
