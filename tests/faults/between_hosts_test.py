#!/usr/bin/env python3
"""A rank that ends before any other has reached it is named at once.

Every rank is on a host of its own, a network namespace: from another host,
addresses that refuse may as well be those of a firewall.
"""

import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path[:0] = ["benchmarks", "tests/benchmarks"]
from lib import network  # noqa: E402
import report_cases  # noqa: E402

_LIVING = os.path.abspath("integrations/c/example")
_DYING = os.path.abspath("tests/faults/dies_after_meeting")
_STORING = os.path.abspath("tests/faults/meets_in_store")
_RANKS = 3
# A busy machine takes its time. Quietly it is under 1 s.
_MOST_SECONDS = 2.5


class BetweenHosts(unittest.TestCase):
    def start(self, hosts, rank, command, variables):
        return subprocess.Popen(
            ["nsenter", f"--net={hosts.paths[rank]}", *command],
            env={**os.environ, **hosts.environment(rank),
                 "GRADIENTFLOW_RANK": str(rank),
                 "GRADIENTFLOW_SIZE": str(hosts.ranks),
                 "GRADIENTFLOW_RENDEZVOUS": f"{hosts.address}:{hosts.port}",
                 "GRADIENTFLOW_JOB_TOKEN": "between hosts",
                 "GRADIENTFLOW_FABRIC": "tcp",
                 "GRADIENTFLOW_JOIN_TIMEOUT_SECONDS": "60", **variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def check(self, dying, ranks=_RANKS, programs=([_LIVING], [_DYING]),
              **variables):
        try:
            hosts = network.Network(ranks, 10)
        except OSError as error:
            self.skipTest(f"SKIPPED, NOT TESTED: {error}")
        # Its process is not to be seen by the others either.
        with hosts:
            running = [self.start(hosts, rank,
                                  ["unshare", "--pid", "--fork", *programs[1]]
                                  if rank == dying else programs[0], variables)
                       for rank in range(ranks)]
            try:
                met = running[dying].communicate(timeout=60)[0]
                died = time.monotonic()
                said = [process.communicate(timeout=60)[0]
                        for rank, process in enumerate(running)
                        if rank != dying]
                took = time.monotonic() - died
            finally:
                for process in running:
                    process.kill()
        self.assertEqual(met, "met\n")
        for text in said:
            self.assertRegex(text, rf"rank {dying} \(.*ended while ranks "
                             "connected")
        self.assertLess(took, _MOST_SECONDS, said)
        print(f"rank {dying} of {ranks}: named after {took:.2f} s")

    def test_rank_0(self):
        self.check(0)

    def test_a_rank_that_others_dial(self):
        self.check(1)

    def test_a_rank_that_dials_others(self):
        self.check(2)

    def test_a_rank_that_has_met_the_others_in_files(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(1, GRADIENTFLOW_RENDEZVOUS=f"file://{folder}")

    def test_a_rank_that_rank_0_has_no_link_to(self):
        self.check(3, 6, GRADIENTFLOW_CONNECT="needed")

    def test_a_rank_that_has_put_its_card_into_a_store(self):
        for dying in 0, 1, 2:
            with tempfile.TemporaryDirectory() as folder:
                living = [_STORING, folder]
                self.check(dying, programs=(living, [*living, "dies"]))


if __name__ == "__main__":
    report_cases.main()
