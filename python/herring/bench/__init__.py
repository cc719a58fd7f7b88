"""Benchmarks of Herring's operations, which run under any launcher: ``python -m herring.bench``."""
