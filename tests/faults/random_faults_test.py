#!/usr/bin/env python3
"""Random faults end in clean errors on all survivors."""

import os
import sys
import unittest

sys.path[:0] = ["benchmarks", "benchmarks/faults", "tests/benchmarks"]
os.environ.setdefault("BENCHMARK_PROGRAMS", "benchmarks")
import faults  # noqa: E402
import report_cases  # noqa: E402
import trial as trials  # noqa: E402
from board import TENSORS, RankReport  # noqa: E402


class RandomFaults(unittest.TestCase):
    def run_trials(self, fabric):
        """A machine that stands still for a second makes a trial slow. So a slow one
        counts if it is slow again."""
        def run(indices):
            return faults.run_campaign(indices, 3, [fabric], seed=7,
                                       heartbeat_seconds=1)
        for index, trial in run(range(20)):
            if trial.verdict == "slow":
                (_, trial), = run([index])
            yield trial

    def check(self, fabric):
        records = []
        for trial in self.run_trials(fabric):
            self.assertTrue(trial.good, f"{trial.fault}: {trial.verdict}; "
                                        f"{trial.what}; {trial.leftovers}")
            records.append(trial.record())
        row = faults.summarise(records)
        self.assertGreater(row["verdicts"]["clean error"], 10, row)
        self.assertEqual(sum(row["verdicts"].values()), 20)

    def test_over_tcp(self):
        self.check("tcp")

    def test_in_shared_memory(self):
        self.check("shm")

    def test_on_two_hosts(self):
        self.check("mixed")


class Drawn(unittest.TestCase):
    def whats(self, fabric):
        return [trials.draw(7, i, 3, fabric, 1).what for i in range(20)]

    def test_ranks_are_killed_or_stopped(self):
        self.assertEqual(set(self.whats("tcp")), {"kill", "stop"})

    def test_ranks_with_cards_may_also_lose_a_port_or_an_address(self):
        self.assertEqual(self.whats("rdma"),
                         5 * ["kill", "stop", "port", "address"])


class DoneItsPart(unittest.TestCase):
    """Whether the others may succeed depends on what was handed in, not on how
    far the rank had come in reporting it."""

    def test_once_every_tensor_of_the_last_step_is_handed_in(self):
        last, all_of_them = trials.STEPS - 1, len(TENSORS)
        for phase, step, handed_in, done in (
                ("opening", 0, 0, False),
                ("backward", last, all_of_them - 1, False),
                ("backward", last, all_of_them, True),
                ("backward", last - 1, all_of_them, False),
                ("between steps", last - 1, all_of_them, False),
                ("finishing", last, all_of_them, True),
                ("closing", last, all_of_them, True)):
            seen = RankReport(trials.PHASES.index(phase), step, handed_in)
            self.assertEqual(seen.done_its_part(), done, (phase, step))


if __name__ == "__main__":
    report_cases.main()
