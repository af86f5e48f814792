#!/usr/bin/env python3
"""Ranks open although connections get through in one direction only.

Every rank is on a host of its own, a network namespace. A closed host drops
whatever comes in for the ports of its rank, but for the rendezvous, and says
nothing.
"""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path[:0] = ["benchmarks", "tests/benchmarks"]
from lib import network  # noqa: E402
import report_cases  # noqa: E402

_PROGRAM = os.path.abspath("integrations/c/example")
_FIRST_PORT, _LAST_PORT = 20000, 20099


def _close(path: str, address: str) -> None:
    """Puts a rule before the one by which the kernel takes what is for it."""
    for command in (
            "ip rule add pref 100 lookup local",
            f"ip rule add pref 10 to {address} ipproto {socket.IPPROTO_TCP} "
            f"dport {_FIRST_PORT}-{_LAST_PORT} blackhole",
            "ip rule del pref 0"):
        subprocess.run(["nsenter", f"--net={path}", *command.split()],
                       check=True)


class OneWay(unittest.TestCase):
    def run_ranks(self, ranks, closed, over_tcp, join_seconds):
        """Returns the exit status and the output of each rank."""
        try:
            hosts = network.Network(ranks, 10)
        except OSError as error:
            self.skipTest(f"SKIPPED, NOT TESTED: {error}")
        with hosts, tempfile.TemporaryDirectory() as folder:
            for rank in closed:
                _close(hosts.paths[rank], f"10.77.0.{rank + 1}")
            meet = (f"{hosts.address}:{hosts.port}" if over_tcp else
                    f"file://{folder}")
            running = [subprocess.Popen(
                ["nsenter", f"--net={hosts.paths[rank]}", _PROGRAM],
                env={**os.environ, **hosts.environment(rank),
                     "GRADIENTFLOW_RANK": str(rank),
                     "GRADIENTFLOW_SIZE": str(ranks),
                     "GRADIENTFLOW_RENDEZVOUS": meet,
                     "GRADIENTFLOW_JOB_TOKEN": "one way",
                     "GRADIENTFLOW_FABRIC": "tcp",
                     "GRADIENTFLOW_JOIN_TIMEOUT_SECONDS": str(join_seconds),
                     "GRADIENTFLOW_PORT_RANGE": f"{_FIRST_PORT}-{_LAST_PORT}"},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                for rank in range(ranks)]
            try:
                said = [process.communicate(timeout=120)[0]
                        for process in running]
            finally:
                for process in running:
                    process.kill()
            return [process.returncode for process in running], said

    def check_one_closed(self, over_tcp):
        for ranks in (2, 3):
            for closed in range(ranks):
                with self.subTest(ranks=ranks, closed=closed):
                    status, said = self.run_ranks(ranks, [closed], over_tcp,
                                                  100)
                    self.assertEqual(status, [0] * ranks, said)

    def test_one_closed_host_with_a_tcp_rendezvous(self):
        self.check_one_closed(True)

    def test_one_closed_host_with_a_rendezvous_in_files(self):
        self.check_one_closed(False)

    def test_two_closed_hosts_are_both_named(self):
        status, said = self.run_ranks(2, [0, 1], True, 4)
        self.assertNotIn(0, status, said)
        for rank in (0, 1):
            self.assertRegex(
                said[rank], rf"10\.77\.0\.{rank + 1}:20\d\d\d.* has no TCP "
                rf"connection in time with rank {1 - rank} \(.*"
                rf"10\.77\.0\.{2 - rank}:20\d\d\d: no answer")


if __name__ == "__main__":
    report_cases.main()
