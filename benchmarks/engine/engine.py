#!/usr/bin/env python3
"""What the engine costs a training process, on two ranks joined by TCP.

Prints the time of GradientReady() on the caller's thread, and the memory that a
rank uses beyond its gradient pool.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import models, report  # noqa: E402
from lib.network import Network  # noqa: E402
from lib.ranks import RankError, run_programs  # noqa: E402

_HALF = {"wire_dtype": "float16"}
# Label, settings, and the allowed share of the pool, in addition to 64 MB.
MEMORY = (("dense, float32", {}, 0.1), ("dense, float16 wire", _HALF, 0.1),
          ("CSC 85 %, float16 wire", {**_HALF, "sparsity": "0.85"}, 1.3))
READY_TARGET_US = 0.5


def measure(model: dict[str, Any], what: str, steps: int,
            settings: dict[str, str]) -> list[dict[str, float]]:
    with Network(2) as network:
        return run_programs(network, "engine/rank", {
            "what": what, "model": model, "steps": steps,
            "settings": settings}, {"GRADIENTFLOW_FABRIC": "tcp"})


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--model", choices=models.NAMES, default="alexnet_bn")
    parser.add_argument("--steps", type=report.at_least(1), default=50,
                        help="for GradientReady")
    args = parser.parse_args()
    model = models.load(args.model)
    rows: list[report.Row] = []
    try:
        ready = measure(model, "ready", args.steps, {})[0]
        print(f"{args.model}, 2 ranks over TCP\nGradientReady: median "
              f"{ready['median_us']:.3f} us, 99 % {ready['p99_us']:.3f} us, "
              f"most {ready['max_us']:.1f} us (target: median <= "
              f"{READY_TARGET_US})")
        rows.append({"what": "GradientReady", **ready})
        for label, settings, share in MEMORY:
            ranks = measure(model, "memory", 6, settings)
            most = max(ranks, key=lambda rank: rank["beyond_mb"])
            print(f"memory beyond the pool of {most['pool_mb']:.0f} MB, {label}: "
                  f"{most['beyond_mb']:.1f} MB (target: <= "
                  f"{share * most['pool_mb'] + 64:.1f})")
            rows.append({"what": f"memory, {label}", **most})
    except (OSError, RankError) as error:
        sys.exit(f"engine: {error}")
    report.append_json(args.json, [
        {"benchmark": "engine", "model": args.model, **row} for row in rows])


if __name__ == "__main__":
    main()
