#!/usr/bin/env python3
"""Latency of torch.distributed.all_reduce, ours against Gloo, alternating.

  latency.py                                  4 B to 1 MiB, loopback
  latency.py --sizes 4096 --rounds 21         one size
  latency.py --ranks 4 --fabric tcp

A sample is one blocking all_reduce of float32; backends take turns of --calls
samples, and the medians are over all turns. Sums are verified first.
"""

import time
from typing import Any

import gradientflow.torch  # noqa: F401  Registers the backend.
import torch
import torch.distributed as dist
from lib import report
from lib.network import Network
from lib.ranks import run_functions
from lib.sums import count_wrong

BACKENDS = ("gloo", "gradientflow")


def _turn(group: Any, data: torch.Tensor, calls: int) -> list[float]:
    """Returns seconds per call, after a barrier and some calls to warm up."""
    dist.barrier(group=group)
    for _ in range(min(calls, 20)):
        dist.all_reduce(data, group=group)
    samples = []
    for _ in range(calls):
        begin = time.perf_counter()
        dist.all_reduce(data, group=group)
        samples.append(time.perf_counter() - begin)
    return samples


def rank_main(rank: int, sizes: list[int], rounds: int,
              calls: int) -> list[report.Row]:
    dist.init_process_group("gloo")
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    rows = []
    for size in sizes:
        data = torch.zeros(size // 4)
        turns: dict[str, list[list[float]]] = {one: [] for one in BACKENDS}
        for backend, group in groups.items():
            if count_wrong(data, group):
                raise RuntimeError(f"{backend}: sums of {size} B are wrong")
        for turn_round in range(rounds):
            # The order alternates, since the second backend finds other caches.
            for backend in BACKENDS[::1 if turn_round % 2 else -1]:
                turns[backend].append(_turn(groups[backend], data, calls))
        medians = {backend: list(map(report.median, turns[backend]))
                   for backend in BACKENDS}
        for backend in BACKENDS:
            samples = sum(turns[backend], [])
            rows.append({
                "backend": backend, "bytes": data.numel() * 4,
                "seconds": report.median(samples),
                "seconds_p99": report.quantile(samples, 0.99),
                "turn_min": min(medians[backend]),
                "turn_max": max(medians[backend]),
                "gain_vs_gloo": report.median_ratio(medians["gloo"],
                                                    medians[backend])})
    dist.destroy_process_group()
    return rows


def options(add: report.Add) -> None:
    add("--ranks", type=report.at_least(2), default=2)
    add("--sizes", type=report.list_of(report.at_least(4)),
        default="4,4096,65536,1048576", help="bytes")
    add("--rounds", type=report.at_least(1), default=11)
    add("--calls", type=report.at_least(1), default=200)
    add("--fabric", choices=("auto", "shm", "tcp"), default="auto")


@report.program(options)
def main(args: report.Args) -> None:
    with Network(args.ranks) as network:
        rows = run_functions(
            rank_main, network, args.sizes, args.rounds, args.calls,
            environment={"GRADIENTFLOW_FABRIC": args.fabric})[0]
    print(f"\nall_reduce through torch, {args.ranks} ranks, loopback, fabric "
          f"{args.fabric}, {args.rounds} x {args.calls} calls\n")
    print(report.table(
        [{**row, **{f"{key}_us": 1e6 * row[key] for key in (
            "seconds", "seconds_p99", "turn_min", "turn_max")}}
         for row in rows],
        {"backend": "{backend}", "bytes": "{bytes}",
         "median us": "{seconds_us:.1f}",
         "turns' medians": "{turn_min_us:.1f}-{turn_max_us:.1f}",
         "p99 us": "{seconds_p99_us:.1f}",
         "gloo/this": "{gain_vs_gloo:.2f}x"}))
    report.append_json(args.json, [
        {"benchmark": "latency", "ranks": args.ranks, "fabric": args.fabric,
         **row} for row in rows])
