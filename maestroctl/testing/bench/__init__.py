"""Load clients and baselines for benchmarks of the gateway. Standard library and aiohttp only."""
