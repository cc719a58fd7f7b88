"""Benchmarks of Herring's operations, to run under any launcher: ``python -m herring.bench``."""
