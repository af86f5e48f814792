"""Runs one function in several processes, a rank each, on a Network."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from network import Network

PORT = 29531  # In namespaces of our own nobody else listens.


class RankError(Exception):
    """A rank failed; the text names it and says how."""


def run_ranks(function: Callable[..., Any], network: Network, *args: Any,
              environment: dict[str, str] | None = None,
              timeout_seconds: float = 3600) -> list[Any]:
    """function(rank, *args) in a new process per rank; what they return.

    `function` is one of a module, importable without this process. RANK,
    WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, as torchrun does, and the
    ranks share the cores. The first failure ends all ranks and is raised as
    RankError; so is one that is not done after `timeout_seconds`.
    """
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // network.ranks)
    # Before torch is loaded in the new processes, which is when it looks.
    before = dict(os.environ)
    os.environ.update({"OMP_NUM_THREADS": str(threads),
                       "MASTER_ADDR": network.address,
                       "MASTER_PORT": str(_port(network)),
                       "WORLD_SIZE": str(network.ranks),
                       # Namespaces have no host names, which torch warns of.
                       "TORCH_CPP_LOG_LEVEL": "ERROR", **(environment or {})})
    processes, pipes = [], []
    try:
        for rank in range(network.ranks):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_rank_main, args=(theirs, function, network, rank, args))
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(mine)
        return _collect(processes, pipes, time.monotonic() + timeout_seconds)
    finally:
        os.environ.clear()
        os.environ.update(before)
        for process in processes:
            process.kill()
            process.join()


def _port(network: Network) -> int:
    if not network.shared:
        return PORT
    import socket  # One that is free just now, where others listen too.
    with socket.socket() as probe:
        probe.bind((network.address, 0))
        return probe.getsockname()[1]


def _rank_main(pipe: multiprocessing.connection.Connection,
               function: Callable[..., Any], network: Network, rank: int,
               args: tuple[Any, ...]) -> None:
    try:
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        network.enter(rank)
        pipe.send(("ok", function(rank, *args)))
    except BaseException:  # noqa: B902  All reach the parent.
        pipe.send(("error", traceback.format_exc()))
        sys.exit(1)


def _collect(processes: list[Any], pipes: list[Any],
             deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    waiting = {pipe: rank for rank, pipe in enumerate(pipes)}
    while waiting:
        left = deadline - time.monotonic()
        ready = multiprocessing.connection.wait(list(waiting), max(left, 0))
        if not ready:
            raise RankError(f"ranks {sorted(waiting.values())} were not done "
                            "in time")
        for pipe in ready:
            rank = waiting.pop(pipe)
            try:
                kind, value = pipe.recv()
            except EOFError:
                processes[rank].join(10)
                raise RankError(f"rank {rank} died, exit code "
                                f"{processes[rank].exitcode}") from None
            if kind == "error":
                raise RankError(f"rank {rank}:\n{value}")
            results[rank] = value
    for process in processes:
        process.join(30)  # A clean exit is part of the measurement.
        if process.exitcode != 0:
            raise RankError("a rank that was done did not exit cleanly: exit "
                            f"code {process.exitcode}")
    return [results[rank] for rank in range(len(pipes))]
