#!/usr/bin/env python3
"""What the engine costs a training process, on two ranks joined by TCP.

Prints the time of GradientReady() on the caller's thread, and the memory that a
rank uses beyond its gradient pool. For one rank alone, prints what the passes of
sparse communication cost when nothing hides them: a step whose gradients are all
ready at once; and what memory allows, as a bare loop that moves the same bytes;
and what GRADIENTFLOW_PROFILE adds to a step.
"""

import pathlib
import tempfile

from lib import models, report
from lib.network import Network
from lib.ranks import run_programs

_HALF = {"wire_dtype": "float16"}
_SPARSE = {**_HALF, "sparsity": "0.85"}
_PLAIN = {**_SPARSE, "residual": "plain"}
_16_BITS = {**_SPARSE, "pool_dtype": "float16"}
_ADD = {"accumulate": "on"}
# Label, settings, and the allowed share of the pool, in addition to 64 MB.
MEMORY = (("dense, float32", {}, 0.1), ("dense, float16 wire", _HALF, 0.1),
          ("CSC 85 %, float16 wire", _SPARSE, 1.3),
          ("the same, accumulating", {**_SPARSE, **_ADD}, 0.1))
PASSES = (("float32 pool", _SPARSE),
          ("the same, accumulating", {**_SPARSE, **_ADD}),
          ("float32 pool, plain residual", _PLAIN),
          ("the same, accumulating", {**_PLAIN, **_ADD}),
          ("float16 pool", _16_BITS),
          ("the same, accumulating", {**_16_BITS, **_ADD}))


def options(add: report.Add) -> None:
    add("--model", choices=models.NAMES, default="alexnet_bn")
    add("--steps", type=report.at_least(1), default=50,
        help="for GradientReady")
    add("--passes", type=report.at_least(0), default=11,
        help="steps for the passes; 0 leaves them out")
    add("--threads", type=report.list_of(report.at_least(1)),
        default="1,2", help="compute threads, for the passes")
    add("--rounds", type=report.at_least(0), default=9,
        help="with and without a profile, of 500 steps; 0 leaves them out")


def profile_row(told: dict, model: dict) -> report.Row:
    """What rounds without and with a profile, in turn, say of its cost."""
    plain, profiled = told["step_us"]
    added = report.median(b - a for a, b in zip(plain, profiled))
    step = model["rest_seconds"] + model["backward_seconds"]
    return {"what": "profile", "added_us": added,
            "plain_us": report.median(plain), "rounds": len(plain),
            "step_ms": 1e3 * step, "percent": 1e-4 * added / step,
            "file_ms": told["closing_ms"][1] - told["closing_ms"][0]}


@report.program(options)
def main(args: report.Args) -> None:
    model = models.load(args.model)
    rows: list[report.Row] = []

    def measure(ranks: int, **job: object) -> list:
        fabric = {"GRADIENTFLOW_FABRIC": "tcp" if ranks > 1 else "auto"}
        with Network(ranks) as network:
            return run_programs(network, "engine/rank", {"model": model, **job},
                                fabric)

    took = measure(2, what="ready", steps=args.steps, settings={})[0]
    ready = {"median_us": report.median(took), "max_us": max(took),
             "p99_us": report.quantile(took, 0.99)}
    print(f"{args.model}, 2 ranks over TCP\nGradientReady: median "
          f"{ready['median_us']:.3f} us, 99 % {ready['p99_us']:.3f} us, most "
          f"{ready['max_us']:.1f} us (target: median <= 0.5)")
    rows.append({"what": "GradientReady", **ready})
    for label, settings, share in MEMORY:
        most = max(measure(2, what="memory", steps=6, settings=settings),
                   key=lambda rank: rank["beyond_mb"])
        print(f"memory beyond the pool of {most['pool_mb']:.0f} MB, {label}: "
              f"{most['beyond_mb']:.1f} MB (target: <= "
              f"{share * most['pool_mb'] + 64:.1f})")
        rows.append({"what": f"memory, {label}", **most})
    if args.passes > 0:
        print(f"{args.model}, 1 rank: a step of CSC 85 %, float16 wire, "
              "with all gradients ready at once")
    for label, settings in PASSES if args.passes > 0 else ():
        for row in measure(1, what="passes", steps=args.passes,
                           threads=args.threads, settings=settings)[0]:
            print(f"{label}, {row['threads']} threads: {row['step_ms']:.1f} "
                  f"ms, of which all cores {row['cpu_ms']:.1f} ms; a bare loop "
                  f"that moves the {row['bare_mb']:.0f} MB: "
                  f"{row['bare_ms']:.1f} ms")
            rows.append({"what": f"passes, {label}", **row})
    if args.rounds > 0:
        with tempfile.TemporaryDirectory() as folder:
            # What it costs depends on how many tensors there are, not on their
            # size, and shows best in short steps.
            small = [{**tensor, "elements": 16} for tensor in model["tensors"]]
            told = measure(1, what="profile", model={**model, "tensors": small},
                           rounds=args.rounds, steps=500, settings={},
                           file=str(pathlib.Path(folder) / "profile"))[0]
        rows.append(profile_row(told, model))
        print("a profile adds {added_us:.2f} us to a step of {plain_us:.1f} us in "
              "which nothing is computed and little sent: {percent:.5f} % of the "
              "{step_ms:.0f} ms that one takes (target: <= 1 %); its file takes "
              "{file_ms:.1f} ms, after 4, 16 and 64 steps and every minute"
              .format_map(rows[-1]))
    report.append_json(args.json, [
        {"benchmark": "engine", "model": args.model, **row} for row in rows])
