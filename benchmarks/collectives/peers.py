"""The programs that collectives.py compares, each as a Team that takes batches."""

import argparse
import contextlib
import itertools
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Iterator

from lib.network import Network
from lib.ranks import START_SECONDS, Team, program, start_team

HERE = pathlib.Path(__file__).resolve().parent
IO = "io="  # Begins the names of teams with other numbers of io threads.
MOST_CONNECTIONS = 4
# Connections, most bytes of a call, and whether it spins.
WAYS = list(itertools.product((1, 2, MOST_CONNECTIONS),
                              (64 << 10, 256 << 10, 1 << 20), (0, 1)))
# Elements that a rank of the bare loop takes at a time.
SHARED_WAYS = (0, 4 << 10, 16 << 10, 128 << 10)
# The most bytes of a receive and of a send.
RING_WAYS = list(itertools.product((32 << 10, 256 << 10),
                                   (128 << 10, 512 << 10, 1 << 30)))


def start_ours(args: argparse.Namespace, network: Network, name: str,
               io_threads: str) -> Team:
    return start_team(name, network, [
        program("collectives/rank"), str(args.max)],
        {"GRADIENTFLOW_FABRIC": args.fabric,
         "GRADIENTFLOW_IO_THREADS": io_threads})


def start_bare_shared(args: argparse.Namespace, network: Network) -> Team:
    memory = os.memfd_create("bare_shared")
    try:
        return start_team("bound", network, [
            program("collectives/bare_shared"), str(args.max), "{rank}",
            str(args.ranks)], descriptors=[[memory]] * args.ranks)
    finally:
        os.close(memory)


def _connected(congestion: str) -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for end in (one, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION,
                       congestion.encode())
    return one, other


@contextlib.contextmanager
def _connections(network: Network, number: int
                 ) -> Iterator[tuple[list[int], list[int]]]:
    """Descriptors of both ends of each; a team keeps its own."""
    pairs = [_connected(network.congestion) for _ in range(number)]
    try:
        to, back = ([end.fileno() for end in ends] for ends in zip(*pairs))
        yield to, back
    finally:
        for end in itertools.chain(*pairs):
            end.close()


def start_bare_exchange(network: Network) -> Team:
    """Two ranks swap bytes, by several connections."""
    with _connections(network, MOST_CONNECTIONS) as ends:
        return start_team("bound", network, [
            program("collectives/bare_exchange")], descriptors=ends)


def start_bare_ring(args: argparse.Namespace, network: Network) -> Team:
    """Rank r has the connection r to the next one."""
    with _connections(network, args.ranks) as (to, back):
        return start_team("ring", network, [
            program("collectives/bare_ring"), str(args.max), "{rank}",
            str(args.ranks)],
            descriptors=[[to[r], back[r - 1]] for r in range(args.ranks)])


def start_bounds(args: argparse.Namespace, network: Network) -> Iterator[Team]:
    if args.fabric != "tcp":
        yield start_bare_shared(args, network)
        return
    if args.ranks == 2:
        yield start_bare_exchange(network)
    yield start_bare_ring(args, network)


def _python_with_gloo() -> str:
    for python in ("python3", "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import torch.distributed as d\n"
                           "assert d.is_gloo_available()"],
                          capture_output=True, check=False).returncode == 0:
            return python
    raise FileNotFoundError("no Python here has torch with Gloo")


def start_gloo(args: argparse.Namespace, network: Network) -> Team:
    return start_team("gloo", network, [
        _python_with_gloo(), str(HERE / "gloo_peer.py"),
        f"{args.folder}/gloo_store", "{rank}", str(args.ranks), str(args.max)])


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


def start_openmpi(args: argparse.Namespace, network: Network) -> Team:
    peer, path = f"{args.folder}/openmpi_peer", f"{args.folder}/openmpi"
    compiled = subprocess.run(["mpicc", "-O2", "-std=gnu11", "-o", peer,
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
            network.on_host(0, [
                "mpirun", "--allow-run-as-root", "--oversubscribe", *launch,
                "--mca", "pml", "ob1", "--mca", "btl", *layer, "-np",
                str(args.ranks), peer, path, str(args.max)]),
            stdin=subprocess.DEVNULL, text=True)
        files = [listener.accept()[0].makefile("rw")
                 for _ in range(args.ranks)]
    return Team("openmpi", [process], [(file, file) for file in files])


def start_all(args: argparse.Namespace, network: Network) -> Iterator[Team]:
    """Starts all teams, ours first. A peer that is not available is reported and
    left out."""
    yield start_ours(args, network, "ours", args.io_threads[0])
    for threads in args.io_threads[1:]:
        yield start_ours(args, network, IO + threads, threads)
    if args.bound:
        yield from start_bounds(args, network)
    for peer in args.peer:
        start = {"openmpi": start_openmpi, "gloo": start_gloo}[peer]
        try:
            yield start(args, network)
        except FileNotFoundError as error:
            print(f"collectives: SKIPPED --peer {peer}: {error}",
                  file=sys.stderr)
