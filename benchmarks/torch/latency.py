#!/usr/bin/env python3
"""Latency of torch.distributed.all_reduce, ours against Gloo, alternating.

  latency.py                                  4 B to 1 MiB, loopback
  latency.py --sizes 4096 --rounds 21         one size
  latency.py --ranks 4 --fabric tcp

A sample is one blocking all_reduce of float32; backends take turns of --calls
samples, and the medians are over all turns. Sums are verified first.
"""

from __future__ import annotations

import pathlib
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import report  # noqa: E402
from lib.network import Network  # noqa: E402
from lib.ranks import RankError, run_functions  # noqa: E402


def _verify(backend: str, group: Any, size: int) -> None:
    import torch
    import torch.distributed as dist
    rank, ranks = dist.get_rank(), dist.get_world_size()
    i = torch.arange(size // 4)
    mine = ((i * i + 13 * rank) % 11 - 5).float()
    want = sum(((i * i + 13 * r) % 11 - 5).float() for r in range(ranks))
    dist.all_reduce(mine, group=group)
    wrong = int((mine != want).sum())
    if wrong:
        raise RuntimeError(f"{backend}: {wrong} of {len(i)} sums are wrong")


def _turn(group: Any, data: Any, calls: int) -> list[float]:
    """Returns seconds per call, after a barrier and some calls to warm up."""
    import torch.distributed as dist
    dist.barrier(group=group)
    for _ in range(min(calls, 20)):
        dist.all_reduce(data, group=group)
    samples = []
    for _ in range(calls):
        begin = time.perf_counter()
        dist.all_reduce(data, group=group)
        samples.append(time.perf_counter() - begin)
    return samples


def rank_main(rank: int, sizes: list[int], backends: list[str], rounds: int,
              calls: int) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    if "gradientflow" in backends:
        import gradientflow.torch  # noqa: F401  Registers the backend.
    groups = {backend: dist.new_group(backend=backend) for backend in backends}
    rows = []
    for size in sizes:
        data = torch.zeros(size // 4)
        samples: dict[str, list[float]] = {backend: [] for backend in backends}
        turns: dict[str, list[float]] = {backend: [] for backend in backends}
        for backend, group in groups.items():
            _verify(backend, group, size)
        for turn_round in range(rounds):
            # The order alternates, since the second backend finds other caches.
            for backend in backends[::1 if turn_round % 2 else -1]:
                new = _turn(groups[backend], data, calls)
                samples[backend] += new
                turns[backend].append(report.median(new))
        for backend in backends:
            ordered = sorted(samples[backend])
            rows.append({
                "backend": backend, "bytes": data.numel() * 4,
                "seconds": report.median(ordered),
                "seconds_p99": ordered[int(0.99 * (len(ordered) - 1))],
                "turn_min": min(turns[backend]),
                "turn_max": max(turns[backend]),
                "gain_vs_gloo": report.median_ratio(turns[backends[0]],
                                                    turns[backend])})
    dist.destroy_process_group()
    return rows if rank == 0 else []


def main() -> None:
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--ranks", type=report.at_least(2), default=2)
    add("--sizes", type=report.list_of(report.at_least(4)),
        default="4,4096,65536,1048576", help="bytes")
    add("--backends", type=report.list_of(str), default="gloo,gradientflow",
        help="the first is what others are compared with")
    add("--rounds", type=report.at_least(1), default=11)
    add("--calls", type=report.at_least(1), default=200)
    add("--fabric", choices=("auto", "shm", "tcp"), default="auto")
    args = parser.parse_args()
    try:
        with Network(args.ranks) as network:
            rows = run_functions(
                rank_main, network, args.sizes, args.backends, args.rounds,
                args.calls,
                environment={"GRADIENTFLOW_FABRIC": args.fabric})[0]
    except (OSError, RankError) as error:
        sys.exit(f"latency: {error}")
    print(f"\nall_reduce through torch, {args.ranks} ranks, loopback, fabric "
          f"{args.fabric}, {args.rounds} x {args.calls} calls\n")
    print(report.table(
        ["backend", "bytes", "median us", "turns' medians", "p99 us",
         f"{args.backends[0]}/this"],
        [[row["backend"], str(row["bytes"]), f"{1e6 * row['seconds']:.1f}",
          f"{1e6 * row['turn_min']:.1f}-{1e6 * row['turn_max']:.1f}",
          f"{1e6 * row['seconds_p99']:.1f}",
          f"{row['gain_vs_gloo']:.2f}x"] for row in rows]))
    report.append_json(args.json, [
        {"benchmark": "latency", "ranks": args.ranks, "fabric": args.fabric,
         **row} for row in rows])


if __name__ == "__main__":
    main()
