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
above 1 ours is faster; it is the median of the ratios of all rounds. The bound
in shared memory is a bare loop over the same memory; over TCP it is a bare
exchange of the same bytes without a reduction, in the best of several ways.
"cpu" is the processor time of an average rank per byte that the busiest rank has
to send or receive; among 48 ranks a byte should cost little more than among 8. With
io threads, "driver" is the part of all other threads:

  collectives.py --fabric tcp --ranks 48 --algorithm ring,two_sync --min 16MB --max 16MB
  collectives.py --fabric tcp --io-threads 0,1,2 --collective all_to_all --min 4MB

A size is that of the buffer, or of one rank's block if there is one per rank;
--max bounds all blocks together. The root changes from call to call.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import show  # noqa: E402
from lib import report  # noqa: E402
from lib.network import Network  # noqa: E402
from lib.ranks import RankError, programs_folder, start_program  # noqa: E402

MOST_RANKS = 64  # Up to so many, sums are exact in every type.
START_SECONDS, ANSWER_SECONDS = 120, 300
# Connections, most bytes of a call, and whether it spins.
WAYS = list(itertools.product((1, 2, 4), (64 << 10, 256 << 10, 1 << 20),
                              (0, 1)))
ALGORITHMS = {
    "allreduce": ("ring", "halving_doubling", "two_sync", "one_round"),
    "broadcast": ("tree", "chain", "scatter_allgather"),
    "reduce": ("direct", "binomial", "chain"),
    "allgather": ("direct", "ring", "doubling"),
    "reduce_scatter": ("direct", "ring", "halving"),
    "all_to_all": ("pairwise", "bruck"),
    "gather": ("direct", "binomial"),
    "scatter": ("direct", "binomial"),
}
BLOCKS = ("allgather", "reduce_scatter", "all_to_all", "gather", "scatter")
IO = "io="  # Begins the names of groups with other numbers of io threads.
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def _too_long(*_: Any) -> None:
    raise RankError("a rank did not answer in time")


class Group:
    """Rank processes that run the same batches together; worker.h describes how
    they receive their orders."""

    def __init__(self, name: str, processes: list[subprocess.Popen[str]],
                 streams: list[tuple[Any, Any]] | None = None) -> None:
        """`streams` are the ranks' inputs and outputs, if they are not those of
        `processes`."""
        self.name = name
        self.note: dict[str, Any] = {}  # Rank 0's, of the last check.
        # What the last batch took of all ranks, and the part of their io threads.
        self.cpu_seconds = self.io_seconds = 0.0
        self._processes = processes
        self._streams = streams or [(p.stdin, p.stdout) for p in processes]
        for rank in range(len(self._streams)):
            if self._read(rank, START_SECONDS) != "ready\n":
                raise RankError(f"{name}: rank {rank} ended before it was ready")

    def run(self, batch: str) -> tuple[float, int]:
        """Returns the slowest rank's time and the sum of wrong elements."""
        used, by_io = self._cpu_seconds()
        for stream, _ in self._streams:
            stream.write(batch + "\n")
            stream.flush()
        seconds, wrong = 0.0, 0
        for rank in range(len(self._streams)):
            answer = self._read(rank, ANSWER_SECONDS).split(maxsplit=1)
            if len(answer) != 2 or answer[0] != "ok":
                raise RankError(f"{self.name}: rank {rank}: "
                                f"{' '.join(answer) or 'ended'}")
            one = answer[1].split(maxsplit=2)
            seconds, wrong = max(seconds, float(one[0])), wrong + int(one[1])
            if rank == 0 and len(one) > 2:
                self.note = json.loads(one[2])
        used_now, by_io_now = self._cpu_seconds()
        self.cpu_seconds = used_now - used
        self.io_seconds = by_io_now - by_io
        return seconds, wrong

    def close(self) -> None:
        for stream, _ in self._streams:
            stream.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _cpu_seconds(self) -> tuple[float, float]:
        """What all threads of the processes, and their io threads, have used so
        far."""
        seconds = by_io = 0.0
        for process in self._processes:
            for thread in pathlib.Path(f"/proc/{process.pid}/task").glob("*"):
                with contextlib.suppress(OSError):  # It has ended meanwhile.
                    used = (thread / "schedstat").read_text()
                    seconds += 1e-9 * int(used.split()[0])
                    if (thread / "comm").read_text() == "gf-io\n":
                        by_io += 1e-9 * int(used.split()[0])
        return seconds, by_io

    def _read(self, rank: int, seconds: int) -> str:
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(seconds)
        try:
            return self._streams[rank][1].readline()
        finally:
            signal.alarm(0)


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def start_ours(args: argparse.Namespace, network: Network, name: str = "ours",
               io_threads: str = "auto") -> Group:
    command = [str(programs_folder() / "collectives" / "rank"), str(args.max)]
    return Group(name, [
        start_program(network, rank, command + ["plain"] * args.plain,
                      {"GRADIENTFLOW_FABRIC": args.fabric,
                       "GRADIENTFLOW_IO_THREADS": io_threads}, **PIPES)
        for rank in range(args.ranks)])


def start_bare_shared(args: argparse.Namespace, network: Network) -> Group:
    memory = os.memfd_create("bare_shared")
    pages = 1 + args.ranks * -(-args.max // 4096)
    os.truncate(memory, 4096 * pages)
    program = str(programs_folder() / "collectives" / "bare_shared")
    try:
        return Group("bound", [
            start_program(network, rank, [program, str(memory), str(rank),
                                          str(args.ranks), str(args.max)],
                          {}, pass_fds=[memory], **PIPES)
            for rank in range(args.ranks)])
    finally:
        os.close(memory)


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


def start_bare_exchange(args: argparse.Namespace, network: Network) -> Group:
    if args.ranks != 2:
        raise ValueError("the bare exchange is between 2 ranks")
    program = str(programs_folder() / "collectives" / "bare_exchange")
    pairs = [_connected() for _ in range(max(way[0] for way in WAYS))]
    try:
        processes = []
        for rank in range(2):
            sockets = [pair[rank].fileno() for pair in pairs]
            processes.append(start_program(
                network, rank, [program, str(args.max), *map(str, sockets)],
                {}, pass_fds=sockets, **PIPES))
        return Group("bound", processes)
    finally:
        for pair in pairs:
            for end in pair:
                end.close()


def _python_with_gloo() -> str:
    for python in ("python3", "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import torch.distributed as d\n"
                           "assert d.is_gloo_available()"],
                          capture_output=True, check=False).returncode == 0:
            return python
    raise FileNotFoundError("no Python here has torch with Gloo")


def start_gloo(args: argparse.Namespace, network: Network) -> Group:
    store = pathlib.Path(args.folder) / "gloo_store"
    command = [_python_with_gloo(), str(HERE / "gloo_peer.py"), str(store)]
    return Group("gloo", [
        start_program(network, rank, [*command, str(rank), str(args.ranks),
                                      str(args.max)], {}, **PIPES)
        for rank in range(args.ranks)])


def _launch_on_hosts(args: argparse.Namespace, network: Network) -> list[str]:
    """Options that make mpirun enter a host's namespace instead of using ssh."""
    addresses = {f"10.77.0.{rank // args.per_host + 1}": network.paths[rank]
                 for rank in range(args.ranks)}
    agent = pathlib.Path(args.folder) / "enter"
    cases = "".join(f"{address}) path={path};; "
                    for address, path in addresses.items())
    agent.write_text(f'#!/bin/sh\ncase $1 in {cases}esac\nshift\n'
                     'exec nsenter --net=$path sh -c "$*"\n')
    agent.chmod(0o755)
    hosts = ",".join(f"{address}:{args.per_host}" for address in addresses)
    return ["--mca", "plm_rsh_agent", str(agent), "--host", hosts, "--mca",
            "oob_tcp_if_include", network.interface, "--mca",
            "mpi_yield_when_idle", "1"]


def start_openmpi(args: argparse.Namespace, network: Network) -> Group:
    program, path = f"{args.folder}/openmpi_peer", f"{args.folder}/openmpi"
    compiled = subprocess.run(["mpicc", "-O2", "-std=gnu11", "-o", program,
                               str(HERE / "openmpi_peer.c")], check=False)
    if compiled.returncode != 0:
        raise FileNotFoundError("mpicc does not work")
    layer = (["self,vader,tcp" if args.per_host > 1 else "self,tcp", "--mca",
              "btl_tcp_if_include", network.interface]
             if args.fabric == "tcp" else ["self,vader"])
    launch = [] if network.gbps is None else _launch_on_hosts(args, network)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(args.ranks)
        listener.settimeout(START_SECONDS)
        process = subprocess.Popen(
            ["mpirun", "--allow-run-as-root", "--oversubscribe", *launch,
             "--mca", "pml", "ob1", "--mca", "btl", *layer, "-np",
             str(args.ranks), program, path, str(args.max)],
            stdin=subprocess.DEVNULL, text=True,
            preexec_fn=lambda: network.enter(0))
        files = [listener.accept()[0].makefile("rw")
                 for _ in range(args.ranks)]
    return Group("openmpi", [process], [(file, file) for file in files])


def start_all(args: argparse.Namespace, network: Network) -> list[Group]:
    """Starts all groups. A peer that is not available is reported and left out."""
    groups = [start_ours(args, network, "ours", args.io_threads[0])]
    groups += [start_ours(args, network, IO + threads, threads)
               for threads in args.io_threads[1:]]
    if args.bound:
        groups.append((start_bare_exchange if args.fabric == "tcp" else
                       start_bare_shared)(args, network))
    for peer in args.peer:
        start = {"openmpi": start_openmpi, "gloo": start_gloo}[peer]
        try:
            groups.append(start(args, network))
        except FileNotFoundError as error:
            print(f"collectives: SKIPPED --peer {peer}: {error}", file=sys.stderr)
    return groups


def moved_bytes(collective: str, size: int, ranks: int) -> float:
    """Returns what the busiest rank has to send or receive."""
    if collective in BLOCKS:
        return size * (ranks - 1)
    return size * (2 * (ranks - 1) / ranks if collective == "allreduce" else 1)


def measure(args: argparse.Namespace, groups: list[Group], collective: str,
            size: int, algorithm: str) -> report.Row:
    """Runs all groups on one size: checks them, then times them in turn."""
    iterations = args.iters or max(3, min(1000, (64 << 20) // size // args.ranks))
    warmup = 1 + iterations // 10
    types = f"{args.dtype} {args.wire or args.dtype}"
    contestants: list[tuple[str, str, Group, str, list[float]]] = []
    for group in groups:
        words = [("", collective)]
        if group.name == "ours" or group.name.startswith(IO):
            words = [(algorithm, f"{collective} {types} {algorithm}")]
        elif group.name == "bound" and args.fabric == "tcp":
            words = [(f"{way[0]} conn, {way[1] >> 10}K{', spins' * way[2]}",
                      " ".join(map(str, way))) for way in WAYS]
        contestants += [(group.name, note, group, word, [])
                        for note, word in words]
    if args.best:
        contestants += [("best", name, groups[0],
                         f"{collective} {types} {name}", [])
                        for name in algorithms_of(args, collective)]
    wrong = sum(group.run(f"{size} 0 1 1 {words}")[1]
                for _, _, group, words, _ in contestants)
    # Seconds of all threads, and of all but io threads, per byte and rank.
    cpu: dict[str, list[tuple[float, float]]] = {one[0]: [] for one in contestants}
    moved = moved_bytes(collective, size, args.ranks)
    bytes_of_ranks = args.ranks * moved * (warmup + iterations)
    order = random.Random(1)
    for _ in range(args.rounds):
        # What runs after a slow batch is slowed down, too.
        for name, _, group, words, seconds in \
                order.sample(contestants, len(contestants)):
            seconds.append(
                group.run(f"{size} {warmup} {iterations} 0 {words}")[0])
            if args.ranks > 1:
                cpu[name].append((group.cpu_seconds / bytes_of_ranks, (
                    group.cpu_seconds - group.io_seconds) / bytes_of_ranks))
    ours = contestants[0][4]
    median = report.median(ours)
    row: report.Row = {
        "benchmark": "collectives", "collective": collective, "size": size,
        "count": size // DTYPE_BYTES[args.dtype], "type": args.dtype,
        "wire": args.wire or args.dtype, "redop": "sum", "algorithm": algorithm,
        "fabric": args.fabric, "ranks": args.ranks, "gbps": args.gbps,
        "per_host": args.per_host, "io_threads": args.io_threads[0],
        "time_us": 1e6 * median, "algbw_gbps": size / median * 1e-9,
        "busbw_gbps": moved / median * 1e-9, "wrong": wrong}

    def cpu_of(name: str) -> dict[str, float]:
        keys = ("cpu_ns_per_byte", "driver_ns_per_byte")
        return {key: 1e9 * report.median(seconds)
                for key, seconds in zip(keys, zip(*cpu[name]))}

    row |= cpu_of("ours")
    for other in dict.fromkeys(one[0] for one in contestants[1:]):
        _, note, _, _, best = min(
            (one for one in contestants[1:] if one[0] == other),
            key=lambda one: report.median(one[4]))
        row[other] = {"time_us": 1e6 * report.median(best),
                      "ratio": report.median_ratio(best, ours)}
        if other.startswith(IO):
            row[other] |= cpu_of(other)
            driver = row[other].get("driver_ns_per_byte", 0)
            row[other]["note"] = f"driver {driver:.2f} ns/B"
        elif note:
            row[other]["note"] = note
    if args.best:
        prices = groups[0].note["prices"]
        row["links"] = groups[0].note["links"]
        row["chosen"] = groups[0].note["chosen"]
        row["algorithms"] = {
            name: {"time_us": 1e6 * report.median(seconds),
                   "price_us": 1e6 * prices[name] if name in prices else None}
            for group, name, _, _, seconds in contestants if group == "best"}
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


def parse_arguments() -> argparse.Namespace:
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--min", type=size_of, default="4KB")
    add("--max", type=size_of, default="128MB")
    add("--factor", type=float, default=4, help="from size to size")
    add("--ranks", type=int, choices=range(1, MOST_RANKS + 1), default=2,
        metavar="RANKS")
    add("--collective", type=report.list_of(str), default=["allreduce"],
        help=f"a list of: {', '.join(ALGORITHMS)}; or all")
    add("--fabric", choices=("shm", "tcp"), default="shm")
    add("--gbps", type=report.list_of(float), default=[],
        help="of the hosts' links, in each network; default: one host")
    add("--per-host", type=report.at_least(1), default=1, help="with --gbps")
    add("--best", action="store_true",
        help="next to the best of all algorithms")
    add("--prices", action="store_true",
        help="with --best: the predicted times of all algorithms, too")
    add("--dtype", choices=DTYPE_BYTES, default="float32")
    add("--wire", choices=DTYPE_BYTES, help="default: as --dtype")
    add("--algorithm", type=report.list_of(str), default="auto",
        help="a list of names, or all")
    add("--io-threads", type=report.list_of(str), default=["auto"],
        help="a list: ours with the first, next to ours with the others")
    add("--iters", type=int, default=0, help="per batch; 0: by size")
    add("--rounds", type=report.at_least(1), default=5)
    add("--plain", action="store_true",
        help="buffers from the heap, not Communicator::AllocateShared()")
    add("--bound", action="store_true")
    add("--peer", type=report.list_of(str), default=[],
        help="openmpi and gloo, with a comma between")
    args = parser.parse_args()
    if set(args.peer) - {"openmpi", "gloo"}:
        parser.error("--peer: expected openmpi or gloo")
    if (args.bound or args.peer) and (args.dtype, args.wire) not in (
            ("float32", None), ("float32", "float32")):
        parser.error("only sums of float32 are compared: no --bound, no --peer "
                     "with other --dtype or --wire")
    if args.collective == ["all"]:
        args.collective = list(ALGORITHMS)
    if set(args.collective) - set(ALGORITHMS):
        parser.error(f"--collective: expected some of {', '.join(ALGORITHMS)}")
    if args.collective != ["allreduce"] and (args.bound or "gloo" in args.peer):
        parser.error("bounds and Gloo are for allreduces only")
    if args.prices and not args.best:
        parser.error("--prices needs --best")
    if args.gbps:
        args.fabric = "tcp" if args.per_host == 1 else "auto"
    return args


def algorithms_of(args: argparse.Namespace, collective: str) -> list[str]:
    shares = ["shared"] if args.fabric == "shm" else []
    if shares and collective == "allreduce":
        shares += ["one_sync"]
    levels = args.per_host > 1 and collective == "allreduce"
    return [*ALGORITHMS[collective], *shares,
            *["two_level"] * levels]


def run(args: argparse.Namespace) -> int:
    """Returns how many elements were wrong."""
    wrong = 0
    with tempfile.TemporaryDirectory() as args.folder, \
            Network(args.ranks, args.gbps[0] if args.gbps else None,
                    per_host=args.per_host, more_gbps=args.gbps[1:]) as network:
        groups = start_all(args, network)
        others = [group.name for group in groups[1:]] + ["best"] * args.best
        show.header(others)
        first = True
        for collective, size in itertools.product(args.collective, sizes(
                args.min, args.max, args.factor, DTYPE_BYTES[args.dtype])):
            if collective in BLOCKS and size * args.ranks > args.max:
                continue
            for algorithm in (["auto", *algorithms_of(args, collective)]
                              if args.algorithm == ["all"] else args.algorithm):
                row = measure(args, groups, collective, size, algorithm)
                wrong += row["wrong"]
                show.row(row, others)
                if args.prices:
                    if first:
                        show.links(row)
                    first = False
                    show.prices(row)
                report.append_json(args.json, [row])
        for group in groups:
            group.close()
    return wrong


def main() -> None:
    try:
        wrong = run(parse_arguments())
    except (OSError, ValueError, RankError) as error:
        sys.exit(f"collectives: {error}")
    if wrong:
        sys.exit(f"collectives: {wrong} wrong elements")


if __name__ == "__main__":
    main()
