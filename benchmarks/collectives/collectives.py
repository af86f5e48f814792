#!/usr/bin/env python3
"""Collectives between processes of this machine, as nccl-tests measures them.

  collectives.py                                   allreduce in shared memory
  collectives.py --fabric tcp --bound              next to the bare exchange
  collectives.py --peer openmpi,gloo               next to other libraries
  collectives.py --collective allgather,reduce --ranks 8 --gbps 1 --per-host 2
                 --best --min 8 --max 64MB         on four hosts with links of
                                                   1 Gb/s, next to the best of
                                                   all algorithms
  collectives.py --gbps 0.1,1                      hosts with two networks

Every result is checked first. Times are medians over the rounds. In each round
all programs run one batch after the other. A ratio is their time over ours, so
above 1 ours is faster; it is the median of the ratios of all rounds. A bound is a
bare program in the best of several ways. In shared memory it is a loop over the
same memory. Over TCP there are two: between two ranks the bound is an exchange of
the same bytes, which come from a cache and are not added, and the ring is an
allreduce of the caller's memory. No allreduce reaches the first.
"cpu" is the processor time of an average rank per byte that the busiest rank has
to send or receive. Among 48 ranks a byte should cost little more than among 8,
and with --bound what it costs the bare ring. With io threads, "driver" is the
part of all other threads:

  collectives.py --fabric tcp --ranks 48 --algorithm ring,two_sync --min 16MB --max 16MB
  collectives.py --fabric tcp --io-threads 0,1,2 --collective all_to_all --min 4MB

A size is that of the buffer, or of one rank's block if there is one per rank;
--max bounds all blocks together. A collective with a root (broadcast, reduce,
gather, scatter) may end on some ranks before others have begun it. So there all ranks
begin each call at a moment that they agree on, from which each takes its time, and the
largest of the ranks' means counts ("cpu" would have the waiting, and is left out). The
root is drawn anew in each round. Links are exact (see lib/network.py).
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import pathlib
import random
import re
import sys
import tempfile
from typing import Any

import show
from lib import report
from lib.network import Network, congestion_option
from lib.ranks import Team
from peers import IO, RING_WAYS, SHARED_WAYS, WAYS, start_all

MOST_RANKS = 64  # Up to so many, sums are exact in every type.
BLOCKS = ("allgather", "reduce_scatter", "all_to_all", "gather", "scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
RUN_UP_SECONDS = 2e-3  # Before each call that has a root: kRunUp of worker.cc.
COLLECTIVES = ("allreduce", "broadcast", "reduce", *BLOCKS)
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def cpu_seconds(team: Team) -> tuple[float, float]:
    """What all threads of a team, and all but io threads, have used so far."""
    seconds = drivers = 0.0
    for process in team.processes:
        for thread in pathlib.Path(f"/proc/{process.pid}/task").glob("*"):
            with contextlib.suppress(OSError):  # It has ended meanwhile.
                name = (thread / "comm").read_text()
                used = (thread / "schedstat").read_text()
                seconds += 1e-9 * int(used.split()[0])
                if name != "gf-io\n":
                    drivers += 1e-9 * int(used.split()[0])
    return seconds, drivers


def run_batch(team: Team, batch: str) -> tuple[float, int, Any]:
    """Returns the slowest rank's time, all wrong elements, and rank 0's note."""
    answers = [answer.split(maxsplit=2) for answer in team.ask(batch)]
    return (max(float(answer[0]) for answer in answers),
            sum(int(answer[1]) for answer in answers),
            json.loads(answers[0][2]) if len(answers[0]) > 2 else None)


@dataclasses.dataclass
class Contestant:
    """What takes its turn in every round: a team, and the words of its batch."""

    name: str
    note: str
    team: Team
    words: str
    seconds: list[float] = dataclasses.field(default_factory=list)
    # The differences of cpu_seconds(), per batch.
    cpu: list[list[float]] = dataclasses.field(default_factory=list)

    def run(self, size: int, warmup: int, iterations: int, root: int) -> None:
        before = cpu_seconds(self.team)
        self.seconds.append(run_batch(
            self.team, f"{size} {warmup} {iterations} 0 {root} {self.words}")[0])
        self.cpu.append([now - then for now, then in
                         zip(cpu_seconds(self.team), before)])

    def us(self) -> float:
        return 1e6 * report.median(self.seconds)

    def cpu_per_byte(self, batch_bytes: float) -> dict[str, float]:
        """In nanoseconds; nothing if no bytes move."""
        keys = ("cpu_ns_per_byte", "driver_ns_per_byte")
        return {key: 1e9 * report.median(seconds) / batch_bytes
                for key, seconds in zip(keys, zip(*self.cpu)) if batch_bytes}


def moved_bytes(collective: str, size: int, ranks: int) -> float:
    """Returns what the busiest rank has to send or receive."""
    if collective in BLOCKS:
        return size * (ranks - 1)
    return size * (2 * (ranks - 1) / ranks if collective == "allreduce" else 1)


def contestants_of(args: report.Args, team: Team, collective: str,
                   algorithm: str) -> list[Contestant]:
    types = f"{args.dtype} {args.wire or args.dtype}"
    if team.name == "ours" or team.name.startswith(IO):
        words = {algorithm: f"{collective} {types} {algorithm}"}
    elif team.name == "ring":
        words = {f"{way[0] >> 10}K, {way[1] >> 10}K": " ".join(map(str, way))
                 for way in RING_WAYS}
    elif team.name == "bound" and args.fabric == "tcp":
        words = {f"{way[0]} conn, {way[1] >> 10}K{', spins' * way[2]}":
                 " ".join(map(str, way)) for way in WAYS}
    elif team.name == "bound":
        words = {f"{turn >> 8}K in turn" if turn else "at once": str(turn)
                 for turn in SHARED_WAYS}
    else:
        words = {"": collective}
    return [Contestant(team.name, note, team, word)
            for note, word in words.items()]


def measure(args: report.Args, teams: list[Team], collective: str,
            size: int, algorithm: str) -> report.Row:
    """Runs all teams on one size: checks them, then times them in turn."""
    contestants = [one for team in teams for one in contestants_of(
        args, team, collective, algorithm)]
    ours, wrong, order = contestants[0], 0, random.Random(1)
    rooted = collective in ROOTED
    last = args.ranks - 1 if rooted else -1
    note = run_batch(ours.team, f"{size} 0 1 1 {last} {ours.words}")[2]
    if args.best:  # Of all algorithms that these ranks can run.
        contestants += [
            dataclasses.replace(one, name="best") for name in note["prices"]
            for one in contestants_of(args, teams[0], collective, name)]
    for one in contestants:
        wrong += run_batch(one.team, f"{size} 0 1 1 {last} {one.words}")[1]
    iterations = args.iters or max(3, min(1000, (64 << 20) // size // args.ranks))
    if args.batch_ms:
        seconds = run_batch(ours.team, f"{size} 1 3 0 {last} {ours.words}")[0]
        seconds += RUN_UP_SECONDS * rooted
        iterations = max(3, min(1000, int(1e-3 * args.batch_ms / seconds)))
    warmup = 1 + iterations // 10
    for _ in range(args.rounds):
        root = order.randrange(args.ranks) if rooted else -1
        # What runs after a slow batch is slowed down, too.
        for one in order.sample(contestants, len(contestants)):
            one.run(size, warmup, iterations, root)
    moved = moved_bytes(collective, size, args.ranks)
    batch_bytes = 0 if rooted else args.ranks * moved * (warmup + iterations)
    row: report.Row = {
        "benchmark": "collectives", "collective": collective, "size": size,
        "count": size // DTYPE_BYTES[args.dtype], "type": args.dtype,
        "wire": args.wire or args.dtype, "redop": "sum", "algorithm": algorithm,
        "fabric": args.fabric, "ranks": args.ranks, "gbps": args.gbps,
        "per_host": args.per_host, "io_threads": args.io_threads[0],
        "time_us": ours.us(), "algbw_gbps": 1e-3 * size / ours.us(),
        "busbw_gbps": 1e-3 * moved / ours.us(), "wrong": wrong,
        **ours.cpu_per_byte(batch_bytes)}
    if args.congestion is not None:
        row["congestion"] = args.congestion
    if args.gbps:
        row["exact"] = True
    for other in dict.fromkeys(one.name for one in contestants[1:]):
        best = min((one for one in contestants[1:] if one.name == other),
                   key=Contestant.us)
        row[other] = {"time_us": best.us(), "ratio": report.median_ratio(
            best.seconds, ours.seconds)}
        if other.startswith(IO):
            row[other] |= best.cpu_per_byte(batch_bytes)
            driver = row[other].get("driver_ns_per_byte", 0)
            row[other]["note"] = f"driver {driver:.2f} ns/B"
        elif best.note:
            row[other]["note"] = best.note
        if other == "ring":
            row[other] |= best.cpu_per_byte(batch_bytes)
            row[other]["note"] += f", {row[other]['cpu_ns_per_byte']:.2f} ns/B"
    if args.best:
        row |= {"links": note["links"], "chosen": note["chosen"]}
        row["algorithms"] = {
            one.note: {"time_us": one.us(),
                       "price_us": 1e6 * note["prices"][one.note]}
            for one in contestants if one.name == "best"}
    return row


def size_of(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)(i?B)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text}: expected a size: 4KB, 128MB")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def sizes(least: int, most: int, factor: float, element: int) -> list[int]:
    """Returns least, least * factor, ... up to most, in whole elements."""
    if factor <= 1 or least > most or most < element:
        raise ValueError(f"sizes from {least} to {most} bytes by {factor}: "
                         "expected min <= max, room for an element and a "
                         "factor above 1")
    found, size = [], float(max(least, element))
    while size <= most:
        found.append(int(size) // element * element)
        size *= factor
    return list(dict.fromkeys(found))


def options(add: report.Add) -> None:
    add("--min", type=size_of, default="4KB")
    add("--max", type=size_of, default="128MB")
    add("--factor", type=float, default=4, help="from size to size")
    add("--ranks", type=int, choices=range(1, MOST_RANKS + 1), default=2,
        metavar="RANKS")
    add("--collective", type=report.some_of(COLLECTIVES), default="allreduce",
        help=f"a list of: {', '.join(COLLECTIVES)}; or all")
    add("--fabric", choices=("shm", "tcp", "rdma"), default="shm")
    add("--gbps", type=report.list_of(float), default=[],
        help="of the hosts' links, in each network; default: one host")
    congestion_option(add)
    add("--per-host", type=report.at_least(1), default=1, help="with --gbps")
    add("--best", action="store_true",
        help="next to the best of all algorithms, with the predicted times of all")
    add("--dtype", choices=DTYPE_BYTES, default="float32")
    add("--wire", choices=DTYPE_BYTES, help="default: as --dtype")
    add("--algorithm", type=report.list_of(str), default="auto",
        help="a list of names")
    add("--io-threads", type=report.list_of(str), default=["auto"],
        help="a list: ours with the first, next to ours with the others")
    add("--iters", type=int, default=0, help="per batch; 0: by size")
    add("--batch-ms", type=float, default=0,
        help="in place of --iters: about how long a batch of ours takes, with 3 to "
        "1000 calls; 50 is long beside what a link lets through at once")
    add("--rounds", type=report.at_least(1), default=5)
    add("--bound", action="store_true")
    add("--peer", type=report.some_of(("openmpi", "gloo")), default=[],
        help="openmpi and gloo, with a comma between")


@report.program(options)
def main(args: report.Args) -> None:
    if (args.bound or args.peer) and {args.dtype, args.wire} - {"float32", None}:
        raise ValueError("only sums of float32 are compared: no --bound, no "
                         "--peer with other --dtype or --wire")
    if args.collective != ["allreduce"] and (args.bound or "gloo" in args.peer):
        raise ValueError("bounds and Gloo are for allreduces only")
    if args.gbps:
        args.fabric = "tcp" if args.per_host == 1 else "auto"
    rows = []
    with tempfile.TemporaryDirectory() as args.folder, \
            Network(args.ranks, args.gbps[0] if args.gbps else None,
                    per_host=args.per_host, more_gbps=args.gbps[1:],
                    congestion=args.congestion,
                    exact=True) as network:
        args.congestion = None if args.fabric == "shm" else network.congestion
        teams = list(start_all(args, network))
        others = [team.name for team in teams[1:]] + ["best"] * args.best
        show.header(args.congestion, others)
        for collective, size, algorithm in itertools.product(
                args.collective, sizes(args.min, args.max, args.factor,
                                       DTYPE_BYTES[args.dtype]),
                args.algorithm):
            if collective in BLOCKS and size * args.ranks > args.max:
                continue
            rows.append(measure(args, teams, collective, size, algorithm))
            show.row(rows[-1], others)
            report.append_json(args.json, rows[-1:])
        for team in teams:
            team.close()
    wrong = sum(row["wrong"] for row in rows)
    if wrong:
        sys.exit(f"collectives: {wrong} wrong elements")
