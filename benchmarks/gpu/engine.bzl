"""What engine.cc includes, for the program and for its test on the fakes."""

ENGINE_DEPS = [
    "//benchmarks/gpu:rig",
    "//benchmarks/lib:basics",
    "//benchmarks/scaling:replay",
    "//gradientflow:session",
    "//gradientflow:session_h",
    "//gradientflow/base",
    "//gradientflow/buckets:layout",
    "//gradientflow/device",
    "//gradientflow/nccl",
    "//gradientflow/nccl:abi",
    "//gradientflow/nccl:parts",
    "@nlohmann_json",
]
