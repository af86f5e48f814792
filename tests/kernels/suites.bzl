"""The suites of kernels, which run on any backend that they are linked with."""

# Each is <name>_test.cc of this folder, and //tests/kernels:<name>_suite.
ELEMENT_SUITES = [
    "convert",
    "find_nonfinite",
    "reduce_many",
]

# The kernels that only the memory of the host has.
CPU_SUITES = [
    "accumulate",
    "l1_norm",
    "residual",
    "sgd",
    "sum_squares",
]

CHUNK_SUITES = [
    "chunk_residual",
    "chunk_restore",
    "chunk_step",
    "chunk_unpack",
    "tile_rates",
    "tile_sgd",
    "tile_squares",
    "top_k",
]

def libraries(suites):
    return ["//tests/kernels:%s_suite" % name for name in suites]
