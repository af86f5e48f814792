"""Runs something in several processes, a rank each, on a Network.

run_functions() runs a function of a Python module; run_programs() runs a
program that links the library, as benchmarks/rank.h describes. Both end all
ranks at the first failure, which they raise as RankError.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent import futures
from typing import Any

from lib.network import Network

_PR_SET_PDEATHSIG = 1


class RankError(Exception):
    """A rank failed; the text names it and says how."""


def programs_folder() -> pathlib.Path:
    """Where Bazel puts the rank programs; benchmarks/run exports it."""
    root = pathlib.Path(__file__).resolve().parents[2]
    return pathlib.Path(os.environ.get("BENCHMARK_PROGRAMS",
                                       root / "bazel-bin" / "benchmarks"))


def start_program(network: Network, rank: int, command: list[str],
                  environment: dict[str, str],
                  **settings: Any) -> subprocess.Popen[str]:
    """`command` in `rank`'s place. It dies with this process. `settings` are
    more arguments of Popen."""
    def enter() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        network.enter(rank)

    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith("GRADIENTFLOW_")}
    return subprocess.Popen(
        command, text=True, preexec_fn=enter, **settings, env={
            **inherited, **network.environment(rank),
            "GRADIENTFLOW_RANK": str(rank),
            "GRADIENTFLOW_SIZE": str(network.ranks),
            "GRADIENTFLOW_RENDEZVOUS": f"{network.address}:{network.port}",
            **environment})


def run_programs(network: Network, program: str,
                 job: dict[str, Any],
                 environment: dict[str, str] | None = None,
                 timeout_seconds: float = 1800) -> list[Any]:
    """Runs `program` (a path below the build's folder) once per rank, with
    `job` in JSON as its argument; what each printed in JSON, by rank."""
    told = {**job, "bytes_per_second": network.bytes_per_second}
    command = [str(programs_folder() / program), json.dumps(told)]
    processes = [start_program(network, rank, command, environment or {},
                               stdout=subprocess.PIPE)
                 for rank in range(network.ranks)]
    with futures.ThreadPoolExecutor(network.ranks) as threads:
        outputs = [threads.submit(process.communicate, None, timeout_seconds)
                   for process in processes]
        try:
            for done in futures.as_completed(outputs):
                rank = outputs.index(done)
                try:
                    done.result()
                except subprocess.TimeoutExpired:
                    raise RankError(f"rank {rank} was not done in time")
                code = processes[rank].returncode
                if code != 0:
                    raise RankError(f"{program}: rank {rank} ended with {code}")
        finally:
            for process in processes:
                process.kill()
    return [json.loads(done.result()[0]) for done in outputs]


def run_functions(function: Callable[..., Any], network: Network, *args: Any,
                  environment: dict[str, str] | None = None,
                  timeout_seconds: float = 3600) -> list[Any]:
    """function(rank, *args) in a new process per rank; what they return.

    `function` is one of a module, importable without this process. RANK,
    WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, as torchrun does, and the
    ranks share the cores.
    """
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // network.ranks)
    # Before torch is loaded in the new processes, which is when it looks.
    before = dict(os.environ)
    os.environ.update({"OMP_NUM_THREADS": str(threads),
                       "MASTER_ADDR": network.address,
                       "MASTER_PORT": str(network.port),
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


def _rank_main(pipe: multiprocessing.connection.Connection,
               function: Callable[..., Any], network: Network, rank: int,
               args: tuple[Any, ...]) -> None:
    try:
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        os.environ.update(network.environment(rank))
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
