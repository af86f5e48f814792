"""The suites of chunk kernels, which run on any library of tables."""

# Each is <name>_test.cc.
CHUNK_TESTS = [
    "chunk_residual",
    "chunk_restore",
    "chunk_step",
    "chunk_unpack",
    "tile_rates",
    "tile_sgd",
    "tile_squares",
    "top_k",
]

# What they need beside tables and googletest.
CHUNK_TEST_DEPS = [
    "//gradientflow/csc:chunk_selector",
    "//kernels:chunk_kernels",
    "//tests/kernels:chunk_oracle",
    "//tests/kernels:oracle_any",
]
