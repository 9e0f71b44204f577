"""Benchmarks: ratios, side by side in one run. See docs/performance.md for the last tables."""
