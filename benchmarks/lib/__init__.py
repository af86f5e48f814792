"""What the benchmarks share: places for ranks, their start, rows, models."""
