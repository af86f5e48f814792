"""Runs something in several processes, one per rank, on a Network.

run_functions() runs a function of a Python module; run_programs() runs a
program that links the library, as benchmarks/lib/rank.h describes. Both end all
ranks at the first failure, and raise it as RankError. A Team is of programs that
take orders.
"""

import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

from lib.network import Network

START_SECONDS, ANSWER_SECONDS = 120, 330
_CALLED = str(pathlib.Path(__file__).with_name("called.py"))


class RankError(Exception):
    """A rank failed; the text names the rank and the failure."""


def program(path: str) -> str:
    """Returns a rank program, `path` being below the folder where Bazel builds
    the benchmarks; benchmarks/run exports that."""
    root = pathlib.Path(__file__).resolve().parents[2]
    return os.path.normpath(pathlib.Path(os.environ.get(
        "BENCHMARK_PROGRAMS", root / "bazel-bin" / "benchmarks")) / path)


def start_program(network: Network, rank: int, command: list[str],
                  environment: dict[str, str],
                  **settings: Any) -> subprocess.Popen[str]:
    """Starts `command` in `rank`'s place. It ends when this process ends.
    `settings` are further arguments of Popen."""
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith("GRADIENTFLOW_")}
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *network.on_host(rank, command)],
        text=True, **settings, env={
            **inherited, **network.environment(rank),
            "GRADIENTFLOW_RANK": str(rank),
            "GRADIENTFLOW_SIZE": str(network.ranks),
            "GRADIENTFLOW_RENDEZVOUS": f"{network.address}:{network.port}",
            "GRADIENTFLOW_JOB_TOKEN": "benchmark",
            **environment})


class Team:
    """Processes that receive the same orders, a line each, and answer by lines;
    benchmarks/lib/rank.h describes them."""

    def __init__(self, name: str, processes: list[subprocess.Popen[str]],
                 streams: list[tuple[Any, Any]] | None = None) -> None:
        """`streams`: the ranks' inputs and outputs, if not the processes' own."""
        self.name, self.processes = name, processes
        self._streams = streams or [(p.stdin, p.stdout) for p in processes]
        for rank in range(len(self._streams)):
            if self._read(rank, START_SECONDS) != "ready\n":
                raise RankError(f"{name}: rank {rank} ended before it was ready")

    def ask(self, order: str) -> list[str]:
        """Returns the answers, by rank."""
        for stream, _ in self._streams:
            stream.write(order + "\n")
            stream.flush()
        answers = []
        for rank in range(len(self._streams)):
            word, _, answer = self._read(rank, ANSWER_SECONDS).partition(" ")
            if word != "ok":
                raise RankError(f"{self.name}: rank {rank}: "
                                f"{f'{word} {answer}'.strip() or 'ended'}")
            answers.append(answer)
        return answers

    def close(self) -> None:
        for stream, _ in self._streams:
            stream.close()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _read(self, rank: int, seconds: int) -> str:
        def too_long(*_: Any) -> None:
            raise RankError(f"{self.name}: rank {rank} did not answer in time")

        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(seconds)
        try:
            return self._streams[rank][1].readline()
        finally:
            signal.alarm(0)


def start_team(name: str, network: Network, command: list[str],
               environment: dict[str, str] | None = None,
               descriptors: Sequence[Sequence[int]] = ()) -> Team:
    """Starts `command` once per rank; "{rank}" in it stands for the number. The
    rank's `descriptors`, which it inherits, are further arguments."""
    processes = []
    for rank in range(network.ranks):
        own = descriptors[rank] if descriptors else ()
        words = [*command, *map(str, own)]
        processes.append(start_program(
            network, rank, [word.replace("{rank}", str(rank)) for word in words],
            environment or {}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            pass_fds=own))
    return Team(name, processes)


def _wait(processes: list[subprocess.Popen[str]], name: str,
          timeout_seconds: float) -> list[str]:
    """Returns what each process printed, by rank. The first failure ends all."""
    with futures.ThreadPoolExecutor(len(processes)) as threads:
        outputs = [threads.submit(process.communicate, None, timeout_seconds)
                   for process in processes]
        try:
            for done in futures.as_completed(outputs):
                rank = outputs.index(done)
                try:
                    done.result()
                except subprocess.TimeoutExpired:
                    raise RankError(f"{name}: rank {rank} was not done in time")
                code = processes[rank].returncode
                if code != 0:
                    raise RankError(f"{name}: rank {rank} ended with {code}")
        finally:
            for process in processes:
                process.kill()
    return [done.result()[0] for done in outputs]


def run_commands(network: Network, name: str, commands: Sequence[list[str]],
                 environment: dict[str, str] | None = None,
                 timeout_seconds: float = 120) -> list[str]:
    """Runs one of the `commands` per rank; returns what each printed, by rank.
    Errors call them `name`."""
    processes = [start_program(network, rank, command, environment or {},
                               stdout=subprocess.PIPE)
                 for rank, command in enumerate(commands)]
    return _wait(processes, name, timeout_seconds)


def run_programs(network: Network, path: str, job: dict[str, Any],
                 environment: dict[str, str] | None = None,
                 timeout_seconds: float = 1800) -> list[Any]:
    """Runs program(path) once per rank, with `job` in JSON as its argument;
    returns what each printed in JSON, by rank."""
    told = {**job, "bytes_per_second": network.bytes_per_second}
    command = [program(path), json.dumps(told)]
    return [json.loads(text) for text in run_commands(
        network, path, [command] * network.ranks, environment, timeout_seconds)]


def run_functions(function: Callable[..., Any], network: Network, *args: Any,
                  environment: dict[str, str] | None = None,
                  timeout_seconds: float = 3600) -> list[Any]:
    """Calls function(rank, *args) in a new process per rank; returns the
    results.

    `function` belongs to a module that can be imported without this process, or
    to the script that it runs. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are
    set as by torchrun, and the ranks share the cores.
    """
    module = function.__module__
    if module == "__main__":
        module = pathlib.Path(str(sys.modules[module].__file__)).stem
    threads = max(1, (os.cpu_count() or 1) // network.ranks)
    with tempfile.TemporaryDirectory() as folder:
        call = pathlib.Path(folder) / "call"
        call.write_bytes(pickle.dumps((module, function.__name__, args)))
        processes = [start_program(
            network, rank, [sys.executable, _CALLED, str(call), str(rank)],
            {"RANK": str(rank), "LOCAL_RANK": str(rank),
             "WORLD_SIZE": str(network.ranks), "MASTER_ADDR": network.address,
             "MASTER_PORT": str(network.port), "OMP_NUM_THREADS": str(threads),
             # Namespaces have no host names; torch would warn of that.
             "TORCH_CPP_LOG_LEVEL": "ERROR",
             "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
             **(environment or {})})
            for rank in range(network.ranks)]
        _wait(processes, function.__name__, timeout_seconds)
        return [pickle.loads(pathlib.Path(f"{call}.{rank}").read_bytes())
                for rank in range(network.ranks)]
