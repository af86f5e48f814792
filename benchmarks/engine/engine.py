#!/usr/bin/env python3
"""What the engine costs a training process, on two ranks joined by TCP.

Prints the time of GradientReady() on the caller's thread, and the memory that a
rank uses beyond its gradient pool. For one rank alone, prints what the passes of
sparse communication cost when nothing hides them: a step whose gradients are all
ready at once; and what memory allows, as a bare loop that moves the same bytes.
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
          ("CSC 85 %, float16 wire", {**_HALF, "sparsity": "0.85"}, 1.3),
          ("the same, accumulating", {**_HALF, "sparsity": "0.85",
                                      "accumulate": "on"}, 0.1))
READY_TARGET_US = 0.5
_SPARSE = {**_HALF, "sparsity": "0.85"}
_PLAIN = {**_SPARSE, "residual": "plain"}
_16_BITS = {**_SPARSE, "pool_dtype": "float16"}
_ADD = {"accumulate": "on"}
PASSES = (("float32 pool", _SPARSE),
          ("the same, accumulating", {**_SPARSE, **_ADD}),
          ("float32 pool, plain residual", _PLAIN),
          ("the same, accumulating", {**_PLAIN, **_ADD}),
          ("float16 pool", _16_BITS),
          ("the same, accumulating", {**_16_BITS, **_ADD}))


def measure(model: dict[str, Any], what: str, steps: int,
            settings: dict[str, str]) -> list[dict[str, float]]:
    with Network(2) as network:
        return run_programs(network, "engine/rank", {
            "what": what, "model": model, "steps": steps,
            "settings": settings}, {"GRADIENTFLOW_FABRIC": "tcp"})


def measure_passes(model: dict[str, Any], steps: int, threads: list[int],
                   settings: dict[str, str]) -> list[dict[str, float]]:
    with Network(1) as network:
        return run_programs(network, "engine/rank", {
            "what": "passes", "model": model, "steps": steps,
            "threads": threads, "settings": settings})[0]


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--model", choices=models.NAMES, default="alexnet_bn")
    parser.add_argument("--steps", type=report.at_least(1), default=50,
                        help="for GradientReady")
    parser.add_argument("--passes", type=report.at_least(0), default=11,
                        help="steps for the passes; 0 leaves them out")
    parser.add_argument("--threads", type=report.list_of(report.at_least(1)),
                        default="1,2", help="compute threads, for the passes")
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
        if args.passes > 0:
            print(f"{args.model}, 1 rank: a step of CSC 85 %, float16 wire, "
                  "with all gradients ready at once")
        for label, settings in PASSES if args.passes > 0 else ():
            for row in measure_passes(model, args.passes, args.threads,
                                      settings):
                print(f"{label}, {row['threads']} threads: "
                      f"{row['step_ms']:.1f} ms, of which all cores "
                      f"{row['cpu_ms']:.1f} ms; a bare loop that moves the "
                      f"{row['bare_mb']:.0f} MB: {row['bare_ms']:.1f} ms")
                rows.append({"what": f"passes, {label}", **row})
    except (OSError, RankError) as error:
        sys.exit(f"engine: {error}")
    report.append_json(args.json, [
        {"benchmark": "engine", "model": args.model, **row} for row in rows])


if __name__ == "__main__":
    main()
