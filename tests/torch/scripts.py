"""Runs a program on several ranks, each in a Python interpreter of its own.

It shows what the harness's forked ranks cannot: how interpreters start and end.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import textwrap

LIMIT_SECONDS = 120.0

# Ends a script that has used Gloo. PyTorch's Gloo keeps its threads after the group
# is destroyed, and the interpreter aborts if one of them drops a Python object while
# the interpreter is taken down. This leaves after the exit handlers, before that.
LEAVE = """
import atexit, os, sys
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""


@dataclasses.dataclass
class Ended:
    exit_code: int
    output: str
    errors: str


def run_script(code: str, size: int, **env: str) -> list[Ended]:
    """Runs `code` on `size` ranks, with torchrun's variables and `env`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(size):
        variables = dict(os.environ, **env)
        variables.update(
            RANK=str(rank),
            WORLD_SIZE=str(size),
            LOCAL_RANK=str(rank),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            GLOO_SOCKET_IFNAME="lo",
            OMP_NUM_THREADS="1",
        )
        processes.append(
            subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        ended = []
        for process in processes:
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
            ended.append(Ended(process.returncode, output, errors))
        return ended
    finally:
        for process in processes:
            process.kill()


def assert_clean(ended: list[Ended]) -> None:
    """Checks that all ranks ended well and wrote nothing but what they printed."""
    for rank, one in enumerate(ended):
        assert one.exit_code == 0 and not one.errors, (rank, one)
