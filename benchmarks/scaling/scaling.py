#!/usr/bin/env python3
"""How much faster a training step gets, technique by technique, link by link.

Backward passes measured on a V100 (mixed precision) are replayed on a timer;
the communication between the rank processes is real. An iteration is backward,
the communication that backward does not hide, and the time of forward and
update. Gradients are random numbers, and every step's result is checked against
a float64 oracle. Modes take turns; times are medians over all rounds, of the
slowest rank.

A link is a rate in Gb/s (each rank on a host of its own), `shm` (all ranks on
this host, in shared memory) or `tcp` (the same over loopback).

With --device cuda gradients live on a GPU, and each is copied there, on a stream,
when its time comes.
"""

import itertools
import pathlib
import sys
from typing import Any

from lib import models, report
from lib.network import Network, congestion_option
from lib.ranks import run_programs

# The rungs of the paper's ladder: each adds a technique to the one before.
# Mixed-precision backward produces FP16 gradients, so the pool is FP16, too.
_HALF = {"pool_dtype": "float16", "wire_dtype": "float16"}
_LAZY = {**_HALF, "overlap": "on", "bucket_bytes": "auto"}
_CSC = {**_LAZY, "sparsity": "0.85"}
MODES = {name: {"name": name, "label": label, "settings": settings}
         for name, label, settings in (
    ("dense", "dense FP32", {"overlap": "off", "bucket_bytes": "0"}),
    ("fp16", "FP16", {**_HALF, "overlap": "off", "bucket_bytes": "0"}),
    ("overlap", "+ overlap", {**_HALF, "overlap": "on", "bucket_bytes": "0"}),
    ("lazy", "+ lazy allreduce", _LAZY), ("csc", "+ CSC 85 %", _CSC),
    ("accumulate", "+ accumulate", {**_CSC, "accumulate": "on"}))}


def sweep_modes() -> list[dict[str, Any]]:
    """"lazy" with the bucket size that chooses itself, and with fixed ones."""
    sizes = ("auto", "0", "256KB", "1MB", "4MB", "8MB", "16MB", "64MB", "inf")
    return [{"name": f"theta {size}", "label": f"theta {size}",
             "settings": {**_LAZY, "bucket_bytes": size}} for size in sizes]


def combine(ranks: list[list[dict[str, float]]]) -> report.Row:
    """Turns one mode's samples, [rank][step], into a row of medians over the
    steps. The time of a step is that of its slowest rank; the other values are
    means over ranks."""
    def median(key: str, slowest: bool = False) -> float:
        steps = zip(*([sample[key] for sample in rank] for rank in ranks))
        return report.median(max(step) if slowest else sum(step) / len(step)
                             for step in steps)

    row = {"ranks": len(ranks),
           "iteration_ms": 1e3 * median("iteration_seconds", True),
           "alone_ms": 1e3 * median("alone_seconds", True),
           "exposed_ms": 1e3 * median("exposed_seconds"),
           "hidden_ms": 1e3 * median("hidden_seconds"),
           "bytes_per_rank_per_step": median("bytes_sent"),
           "theta_bytes": median("bucket_bytes"), "buckets": median("buckets")}
    communication = row["hidden_ms"] + row["exposed_ms"]
    if row["bytes_per_rank_per_step"] > 0 and communication > 0:
        row["hidden_share"] = row["hidden_ms"] / communication
    # Images per second relative to one GPU that does not communicate.
    row["scaling"] = len(ranks) * row["alone_ms"] / row["iteration_ms"]
    return row


def run_cell(args: report.Args, name: str, link: str, ranks: int,
             modes: list[dict[str, Any]]) -> list[report.Row]:
    """Runs one model on one network in all modes; returns a row for each."""
    gbps = None if link in ("shm", "tcp") else float(link)
    place = {"GRADIENTFLOW_FABRIC": link if gbps is None else "tcp",
             "GRADIENTFLOW_DEVICE": args.device,
             "GRADIENTFLOW_DEVICE_COLLECTIVES": args.device_collectives}
    if args.device != "cpu":
        place["GRADIENTFLOW_FABRIC"] = "auto"
    job = {"model": models.load(name, args.batch), "modes": modes,
           "warmup": args.warmup, "rounds": args.rounds, "steps": args.steps}
    with Network(ranks, gbps if ranks > 1 else None, pacing=True,
                 congestion=args.congestion) as network:
        samples = run_programs(network, "scaling/rank", job, place)
        how, congestion = network.how, network.congestion
    rows = []
    for i, mode in enumerate(modes):
        row = {"benchmark": "scaling", "model": name, "batch": args.batch,
               "link": link if gbps is None else f"{gbps:g} Gb/s", "how": how,
               "congestion": congestion,
               "device": args.device, "mode": mode["name"],
               "label": mode["label"],
               **combine([rank[i] for rank in samples])}
        first = rows[0] if rows else row
        row["speedup"] = first["iteration_ms"] / row["iteration_ms"]
        rows.append(row)
    return rows


def size_text(theta: float) -> str:
    if theta >= 1 << 60:
        return "all"
    return f"{theta / 1e6:.1f}MB" if theta >= 1e6 else f"{theta / 1e3:.0f}KB"


def print_rows(rows: list[report.Row]) -> None:
    first = rows[0]
    print(f"\n{first['model']}, {first['ranks']} ranks, {first['link']}: "
          f"{first['how']}")
    print(report.table(
        [{**row, "mb": row["bytes_per_rank_per_step"] / 1e6,
          "theta": size_text(row["theta_bytes"])} for row in rows],
        {"mode": "{label}", "step ms": "{iteration_ms:.1f}",
         "speedup": "{speedup:.2f}x", "scaling": "{scaling:.2f}",
         "exposed ms": "{exposed_ms:.1f}", "hidden": "{hidden_share:.0%}",
         "MB/rank/step": "{mb:.1f}", "theta": "{theta}",
         "buckets": "{buckets:.0f}"}), flush=True)


def options(add: report.Add) -> None:
    add("--models", type=report.some_of(models.NAMES),
        default="alexnet_bn,resnet50_gf",
        help=f"of {', '.join(models.NAMES)}")
    add("--links", type=report.list_of(str), default="1,10",
        help="Gb/s, shm or tcp (default: %(default)s)")
    congestion_option(add)
    add("--ranks", type=report.list_of(report.at_least(1)), default="2")
    add("--modes", type=report.some_of(MODES), default="dense,fp16,lazy,csc",
        help=f"of {', '.join(MODES)}")
    add("--sweep", action="store_true",
        help="instead of modes: the automatic bucket size against fixed ones")
    add("--batch", type=report.at_least(1), default=128,
        help="images per rank; times scale with it")
    add("--warmup", type=report.at_least(1), default=4, help="untimed steps")
    add("--rounds", type=report.at_least(1), default=5,
        help="of all modes in turn")
    add("--steps", type=report.at_least(1), default=1,
        help="timed, per round and mode")
    add("--device", default="cpu", help="cpu, cuda or cuda:N")
    add("--device-collectives", default="auto", help="auto, nccl or staged")
    add("--plot", type=pathlib.Path, metavar="FILE", help=".png or .svg")


@report.program(options)
def main(args: report.Args) -> None:
    modes = sweep_modes() if args.sweep else [MODES[m] for m in args.modes]
    rows = []
    for place in itertools.product(args.models, args.links, args.ranks):
        if sys.stderr.isatty():  # The table overwrites this.
            print(*place, "...", end="\r", file=sys.stderr, flush=True)
        cell = run_cell(args, *place, modes)
        report.append_json(args.json, cell)
        print_rows(cell)
        if args.sweep:
            best = min(cell, key=lambda row: row["iteration_ms"])
            print("The bucket size that chose itself takes "
                  f"{cell[0]['iteration_ms'] / best['iteration_ms']:.3f} of "
                  f"the best's time ({best['label']}).", flush=True)
        rows += cell
    print("\nspeedup: of a step, against the first mode on the same link; "
          "scaling: images per second\nagainst one GPU without communication; "
          "hidden: share of the communication under backward;\n"
          "theta: bucket size.")
    if args.plot:
        import plot  # Needs matplotlib.
        plot.draw(rows, args.plot)
        print(f"picture: {args.plot}")
