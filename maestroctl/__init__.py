"""maestroctl: serve many language models to multi-agent workflows on few GPUs."""

__version__ = "0.1.0"
