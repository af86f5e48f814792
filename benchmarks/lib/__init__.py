"""What the benchmarks share: networks, rank processes, reports, models."""
