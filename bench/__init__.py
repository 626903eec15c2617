"""Measurements: each script prints its figures and a ratio; docs/benchmarks.md keeps the tables."""
