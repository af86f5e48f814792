"""Runs a function on several ranks, each a process, with a hard time limit.

    def body(ranks: Ranks, x: int) -> int:
        tensor = torch.full((3,), float(ranks.rank))
        dist.all_reduce(tensor)
        return int(tensor[0])

    assert launch(body, 3, 7) == [3, 3, 3]

Bodies are functions of modules, since they are sent by name. An exception, a
death or a rank that does not end fails the test with the stacks of all ranks.
run() returns what happened to each rank instead, for tests in which ranks
should fail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import gradientflow.torch  # For the ranks, which are forked.
from on_device import OnDevice

# Where ranks make their tensors: "cpu", or "cuda", whose GPUs they share.
DEVICE = os.environ.get("GFT_TEST_DEVICE", "cpu")
BACKEND = "gradientflow"
# For a whole launch. Ranks share two cores with whatever else runs.
LIMIT_SECONDS = 240.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["preload"])


@dataclasses.dataclass
class Ranks:
    """What a body knows of its job."""

    rank: int
    size: int
    directory: str  # Shared by all ranks of this launch; empty at first.

    def started(self, what: str) -> None:
        """Tells the other ranks and the test that this rank has reached `what`."""
        with open(os.path.join(self.directory, f"{what}.{self.rank}"), "w") as f:
            f.write(repr(time.monotonic()))

    def time_of(self, what: str, rank: int) -> float | None:
        """When that rank reached it, by time.monotonic(); None: not yet."""
        try:
            with open(os.path.join(self.directory, f"{what}.{rank}")) as f:
                text = f.read()
        except FileNotFoundError:
            return None
        return float(text) if text else None

    def wait_for(self, what: str, ranks: Iterable[int]) -> None:
        """Waits until those ranks have reached it, without any process group."""
        waiting = threading.Event()
        for rank in ranks:
            while self.time_of(what, rank) is None:
                waiting.wait(0.002)


@dataclasses.dataclass
class Outcome:
    """How a rank ended."""

    rank: int
    value: Any = None
    error: str = ""  # The text of an exception,
    error_type: str = ""  # the name of its class,
    stack: str = ""  # and its stack.
    signal: int = 0  # The signal that killed it.
    exit_code: int = 0
    late: bool = False  # The harness ended it.
    began: float = 0.0  # time.monotonic() before the body and
    ended: float = 0.0  # after it.

    @property
    def ok(self) -> bool:
        return not (self.error_type or self.signal or self.late or self.exit_code)

    def __str__(self) -> str:
        if self.ok:
            return f"rank {self.rank}: ended well"
        if self.late:
            return f"rank {self.rank}: did not end; killed by the harness\n{self.stack}"
        if self.signal:
            name = signal.Signals(self.signal).name
            return f"rank {self.rank}: {name}\n{self.stack}".rstrip()
        if self.error_type:
            return f"rank {self.rank}:\n{self.stack}"
        return f"rank {self.rank}: exit code {self.exit_code}"


def launch(body: Callable[..., Any], size: int, *args: Any, **how: Any) -> list[Any]:
    """Like run(), but requires all ranks to succeed; returns their values."""
    outcomes = run(body, size, *args, **how)
    if not all(outcome.ok for outcome in outcomes):
        raise AssertionError("\n".join(map(str, outcomes)))
    return [outcome.value for outcome in outcomes]


def run(
    body: Callable[..., Any],
    size: int,
    *args: Any,
    backend: str | None = BACKEND,
    store: str = "file",
    timeout: float = 60.0,
    env: dict[str, str] | None = None,
    leave: Iterable[int] = (),
    destroy: bool = True,
    limit: float = LIMIT_SECONDS,
) -> list[Outcome]:
    """Runs body(Ranks, *args) on `size` ranks.

    Args:
        backend: of the default process group; None: the body makes it.
        store: where ranks meet: "file" or "tcp".
        timeout: of the process group, seconds.
        env: more environment for the ranks.
        leave: ranks that need not end, and are killed after the others.
        destroy: whether ranks destroy the process group after the body.
        limit: seconds until all are killed, and the launch has failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        port = _free_port() if store == "tcp" else 0
        setup = _Setup(size, directory, backend, port, timeout, env or {}, destroy)
        ranks = [_Rank(rank, setup, body, args) for rank in range(size)]
        deadline = time.monotonic() + limit
        needed = [rank for i, rank in enumerate(ranks) if i not in set(leave)]
        in_time = _wait(needed, deadline)
        outcomes = [rank.end(late=rank in needed) for rank in ranks]
        if not in_time:
            raise AssertionError(
                f"not over after {limit:g} s:\n" + "\n".join(map(str, outcomes))
            )
        return outcomes


@dataclasses.dataclass
class _Setup:
    size: int
    directory: str
    backend: str | None
    port: int
    timeout: float
    env: dict[str, str]
    destroy: bool

    def init(self, rank: int) -> None:
        if self.backend is None:
            return
        timeout = timedelta(seconds=self.timeout)
        if self.port:
            meeting = dist.TCPStore(
                "127.0.0.1", self.port, self.size, rank == 0, timeout=timeout
            )
        else:
            meeting = dist.FileStore(os.path.join(self.directory, "store"), self.size)
        dist.init_process_group(
            self.backend, store=meeting, rank=rank, world_size=self.size, timeout=timeout
        )


class _Rank:
    """A rank's process, and the messages from it."""

    def __init__(self, rank: int, setup: _Setup, body: Any, args: tuple) -> None:
        self.rank = rank
        self.directory = setup.directory
        self.pipe, theirs = _context.Pipe(duplex=False)
        self.process = _context.Process(
            target=_main, args=(rank, setup, body, args, theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        self.outcome: Outcome | None = None
        self.over = False

    def read(self) -> None:
        try:
            self.outcome = self.pipe.recv()
        except EOFError:  # It has ended, or was killed.
            self.over = True

    def end(self, late: bool) -> Outcome:
        """Returns what happened to the rank; kills it if it still runs."""
        self.process.join(0 if not self.over else 30)
        if self.process.is_alive():
            if late:  # Its stacks are written to a file.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.process.pid, signal.SIGABRT)
                self.process.join(2)
            self.process.kill()  # It may be gone already.
            self.process.join()
            self.outcome = Outcome(self.rank, late=late)
        code = self.process.exitcode or 0
        outcome = self.outcome or Outcome(self.rank)
        outcome.stack = outcome.stack or self._stack()
        outcome.signal = -code if code < 0 else 0
        outcome.exit_code = max(code, 0)
        self.pipe.close()
        return outcome

    def _stack(self) -> str:
        """Returns the stack at the signal that killed it, if Python saw the
        signal."""
        path = os.path.join(self.directory, f"stack.{self.rank}")
        try:
            with open(path) as f:
                return f.read()
        except FileNotFoundError:
            return ""


def _wait(ranks: list[_Rank], deadline: float) -> bool:
    while True:
        left = {rank.pipe: rank for rank in ranks if not rank.over}
        if not left:
            return True
        ready = multiprocessing.connection.wait(
            list(left), max(0.0, deadline - time.monotonic())
        )
        if not ready:
            return False
        for pipe in ready:
            left[pipe].read()


def _main(rank: int, setup: _Setup, body: Any, args: tuple, pipe: Any) -> None:
    stacks = open(os.path.join(setup.directory, f"stack.{rank}"), "w")
    faulthandler.enable(stacks)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ.update(setup.env)
    dist.set_debug_level_from_env()  # Torch has read it in the parent.
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    outcome = Outcome(rank)
    try:
        setup.init(rank)
        outcome.began = time.monotonic()
        try:
            with _device_of(rank):
                outcome.value = body(Ranks(rank, setup.size, setup.directory), *args)
        finally:
            outcome.ended = time.monotonic()
        if setup.destroy and dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:
        outcome.error = str(error)
        outcome.error_type = type(error).__name__
        outcome.stack = traceback.format_exc()
    pipe.send(outcome)


def _device_of(rank: int) -> contextlib.AbstractContextManager[Any]:
    if DEVICE == "cpu":
        return contextlib.nullcontext()
    index = rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return OnDevice(torch.device(DEVICE, index))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
