#!/usr/bin/python3
"""Every driver does a short run, and its rows match its samples."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import stat
import sys
import tempfile
import unittest
from unittest import mock

sys.path[:0] = [f"benchmarks/{name}" for name in
                ("", "collectives", "engine", "faults", "opening",
                              "planner", "scaling", "training", "zerocopy")]
sys.path.insert(0, str(pathlib.Path(__file__).parent))
os.environ.setdefault("BENCHMARK_PROGRAMS", "benchmarks")
import choices  # noqa: E402
import collectives  # noqa: E402
import connecting  # noqa: E402
import engine  # noqa: E402
import faults  # noqa: E402
import opening  # noqa: E402
import planner  # noqa: E402
import plot  # noqa: E402
import renting  # noqa: E402
import scaling  # noqa: E402
import training  # noqa: E402
import zerocopy  # noqa: E402
import report_cases  # noqa: E402
from lib.ranks import RankError, start_team  # noqa: E402


def run(driver, *arguments):
    """Returns the rows of a driver's main()."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows"
        command = [driver.__name__, "--json", str(path), *arguments]
        with mock.patch.object(sys, "argv", command), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            driver.main()
        print(said.getvalue())
        return [json.loads(line) for line in path.read_text().splitlines()]


def sample(iteration, exposed, hidden):
    return {"iteration_seconds": iteration, "exposed_seconds": exposed,
            "hidden_seconds": hidden, "alone_seconds": iteration / 2,
            "bytes_sent": 1000, "bucket_bytes": 0, "buckets": 1}


class Scaling(unittest.TestCase):
    def test_step_takes_as_long_as_on_its_slowest_rank(self):
        # Slowest per step: 0.5, 0.3, 0.9; means of exposed: 2, 4, 6.
        row = scaling.combine(
            [[sample(0.5, 1, 3), sample(0.2, 4, 3), sample(0.1, 5, 3)],
             [sample(0.4, 3, 5), sample(0.3, 4, 5), sample(0.9, 7, 5)]])
        self.assertEqual(row["ranks"], 2)
        self.assertAlmostEqual(row["iteration_ms"], 500)
        self.assertAlmostEqual(row["exposed_ms"], 4000)
        self.assertAlmostEqual(row["hidden_share"], 0.5)
        self.assertAlmostEqual(row["scaling"], 2 * 0.25 / 0.5)

    def test_no_communication_has_no_hidden_share(self):
        silent = {**sample(1, 0, 0), "bytes_sent": 0}
        self.assertNotIn("hidden_share", scaling.combine([[silent]]))

    def test_modes_take_turns_on_a_slow_link(self):
        rows = run(scaling, "--models", "alexnet_bn", "--links", "10",
                   "--rounds", "1", "--warmup", "3", "--batch", "16")
        self.assertEqual([row["mode"] for row in rows],
                         ["dense", "fp16", "lazy", "csc"])
        self.assertEqual(rows[0]["speedup"], 1)
        # An eighth of what dense sends, over the same link.
        self.assertLess(rows[3]["bytes_per_rank_per_step"],
                        rows[0]["bytes_per_rank_per_step"] / 8)
        # However busy the machine is, nothing is faster than the link.
        line_ms = 8e3 * rows[0]["bytes_per_rank_per_step"] / 10e9
        self.assertGreater(rows[0]["iteration_ms"], 0.8 * line_ms)

    def test_sweep_has_a_row_per_bucket_size(self):
        rows = run(scaling, "--models", "alexnet_bn", "--links", "shm",
                   "--sweep", "--rounds", "1", "--warmup", "1")
        self.assertEqual(len(rows), len(scaling.sweep_modes()))


class Plot(unittest.TestCase):
    ROWS = [{"exchange": name, "ranks": float(ranks), "samples_per_second": rate,
             "efficiency_percent": 80, "step_seconds": 0.2, "low_seconds": 0.1,
             "high_seconds": 0.4, "extrapolated": said}
            for name, ranks, rate, said in
            (("csc", 4, 100, "ranks"), ("csc", 2, 60, "-"), ("dense", 2, 50, "-"))]

    def test_curves_have_the_interval_and_what_is_extrapolated(self):
        found = plot.curves(self.ROWS, "samples")
        self.assertEqual(list(found), ["csc", "dense"])
        self.assertEqual(found["csc"].ranks, [2, 4])
        self.assertEqual(found["csc"].measured, [True, False])
        for low, value, high in zip(found["csc"].low, found["csc"].value,
                                    found["csc"].high):
            self.assertAlmostEqual(low, value / 2)
            self.assertAlmostEqual(high, value * 2)

    def test_predictions_without_a_batch_have_no_rate(self):
        rows = [{**row, "samples_per_second": 0} for row in self.ROWS]
        with self.assertRaisesRegex(ValueError, "GRADIENTFLOW_PROFILE_BATCH"):
            plot.curves(rows, "samples")
        self.assertEqual(plot.curves(rows, "efficiency")["dense"].value, [80])

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
    def test_pictures_are_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "picture.svg"
            plot.draw_predictions(self.ROWS, "samples", file)
            self.assertIn("80 % of the cases", file.read_text())


class Planner(unittest.TestCase):
    @staticmethod
    def row(mode, measured, predicted, ranks=2):
        return {"sweep": False, "model": "m", "link_gbps": 1.0, "congestion": "cubic",
                "ranks": ranks, "slow_gbps": None,
                "wire": mode.split(",")[0], "mode": mode, "plan": {},
                "measured_ms": measured, "predicted_ms": predicted,
                "error": predicted / measured - 1}

    def test_slices_of_a_cell_are_summed_up_by_their_median_errors(self):
        rows = [self.row("dense, lazy", 100, 300),
                self.row("dense, lazy", 100, 110, ranks=4),
                self.row("csc, lazy", 50, 49),
                self.row("dense, lazy", 100, 105),
                self.row("dense, one bucket", 104, 100),
                self.row("dense, lazy", 150, 105)]
        cell, other = planner.cells_of(rows)
        self.assertEqual([row["predicted_ms"] for row in cell], [105, 49, 100])
        self.assertEqual([row.get("spread") for row in cell], [1.5, None, None])
        self.assertEqual(len(other), 1)
        line = planner.cell_row(cell)
        self.assertAlmostEqual(line["dense"], 0.05)
        self.assertAlmostEqual(line["csc"], -0.02)
        # Two of the three pairs differ by more than 10 %.
        self.assertEqual(line["pairs"], "2/2")

    def test_sum_refuses_rows_without_what_it_needs(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows"
            old = {"model": "m", "mode": "dense, lazy", "plan": {}, "wire": "dense"}
            path.write_text(json.dumps(old) + "\n")
            with self.assertRaises(SystemExit) as end:
                planner.summarize(path, None)
            self.assertIn("row 1 has no sweep", str(end.exception.code))

    def test_sum_reads_what_json_wrote(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows"
            row = self.row("fp16, lazy", 100, 90)
            del row["congestion"]  # It was not always there.
            path.write_text(json.dumps(row) + "\n")
            with mock.patch.object(sys, "argv", ["planner", "--sum", str(path)]), \
                    contextlib.redirect_stdout(io.StringIO()) as said:
                planner.main()
        self.assertIn("median error 10.0%, worst 10.0%", said.getvalue())


class Renting(unittest.TestCase):
    # They cost 24, 26, 30 and 24: with four hosts a step is as short as with one.
    HOURS = {1: 24, 2: 13, 3: 10, 4: 6}

    def test_the_best_keeps_the_limit_at_the_least_cost_or_time(self):
        self.assertEqual(renting.best_for(self.HOURS, "deadline", 13), 4)
        self.assertEqual(renting.best_for({1: 24, 2: 13, 3: 9}, "deadline", 13), 2)
        self.assertIsNone(renting.best_for(self.HOURS, "deadline", 5))
        self.assertEqual(renting.best_for({1: 24, 2: 13, 3: 9}, "budget", 26), 2)

    def test_what_is_named_is_judged_by_what_was_measured(self):
        row = renting.judged(self.HOURS, "deadline", 9, 3)
        self.assertEqual(row["best"], 4)
        self.assertAlmostEqual(row["missed"], 1 / 9)
        self.assertAlmostEqual(row["worse"], 30 / 24 - 1)
        row = renting.judged({1: 24, 2: 13, 3: 10}, "budget", 28, 1)
        self.assertEqual((row["best"], row["missed"]), (2, 0))
        self.assertAlmostEqual(row["worse"], 24 / 13 - 1)
        self.assertNotIn("missed", renting.judged(self.HOURS, "budget", 28, None))
        row = renting.judged(self.HOURS, "deadline", 5, 4)
        self.assertIsNone(row["best"])
        self.assertAlmostEqual(row["missed"], 6 / 5 - 1)
        self.assertNotIn("worse", row)

    def test_a_plan_that_keeps_the_limit_is_the_one_called_chosen(self):
        plans = [{"plan": "chosen", "hosts": 3.0},
                 {"plan": "fastest of all", "hosts": 8.0}]
        self.assertEqual(renting.chosen({"plans": plans}), 3)
        self.assertIsNone(renting.chosen({"plans": plans[1:]}))
        with self.assertRaisesRegex(RankError, "did not say 'plans'"):
            renting.chosen({})


class Training(unittest.TestCase):
    def test_summary_has_means_and_the_deviation_of_the_seeds(self):
        one = {"train_loss": 0.1, "test_accuracy": 0.98, "bytes_per_step": 100,
               "seconds": 1}
        two = {**one, "test_accuracy": 0.96, "train_loss": 0.3}
        row = training.summarise("x", [[one, two], [one, two]])
        self.assertEqual((row["ranks"], row["seeds"]), (2, 2))
        self.assertAlmostEqual(row["test_accuracy"], 0.97)
        self.assertAlmostEqual(row["test_accuracy_sd"], 0.0141421356)
        self.assertAlmostEqual(row["train_loss"], 0.2)

    def test_sparse_training_is_about_as_accurate_and_sends_less(self):
        rows = run(training, "--seeds", "1", "--epochs", "10", "--ranks", "3")
        dense, sparse = rows[1], rows[3]
        self.assertGreater(sparse["test_accuracy"], 0.9)
        self.assertLess(sparse["bytes_per_step_per_rank"],
                        dense["bytes_per_step_per_rank"] / 3)
        self.assertAlmostEqual(rows[0]["train_loss"], dense["train_loss"], 4)


class Engine(unittest.TestCase):
    def test_says_times_and_memory(self):
        rows = run(engine, "--steps", "2", "--model", "resnet50",
                   "--passes", "1", "--threads", "2", "--rounds", "1")
        self.assertEqual(len(rows),
                         2 + len(engine.MEMORY) + len(engine.PASSES))
        self.assertGreater(rows[0]["median_us"], 0)
        self.assertGreater(rows[1]["beyond_mb"], 0)
        self.assertGreater(rows[-1]["plain_us"], 0)

    def test_cost_of_a_profile_is_a_part_of_a_whole_step(self):
        row = engine.profile_row(
            {"step_us": [[10, 30, 20], [14, 32, 23]], "closing_ms": [1, 4]},
            {"rest_seconds": 0.1, "backward_seconds": 0.2})
        # The median of the rounds' 4, 2 and 3 us.
        self.assertAlmostEqual(row["added_us"], 3)
        self.assertAlmostEqual(row["percent"], 0.001)
        self.assertAlmostEqual(row["file_ms"], 3)


class Faults(unittest.TestCase):
    def test_ranks_end_as_they_should(self):
        with self.assertRaises(SystemExit) as end:
            run(faults, "--count", "6", "--verbose")
        self.assertFalse(end.exception.code)


class Connecting(unittest.TestCase):
    def test_survivors_name_a_rank_that_died(self):
        with self.assertRaises(SystemExit) as end:
            run(connecting, "--ranks", "4", "--jobs", "2", "--victims", "2",
                "--seed", "3")
        self.assertFalse(end.exception.code)

    def test_an_error_names_a_victim_or_says_who_did_not_come(self):
        late = "rendezvous at a:1: ranks 0, 3-5 of 8 did not join in time"
        self.assertEqual(connecting.absent(late), [0, 3, 4, 5])
        self.assertTrue(connecting.explains(late, [4, 6]))
        self.assertFalse(connecting.explains(late, [6]))
        self.assertTrue(connecting.explains(
            "rank 3 joined, but had no word from rank 0 in time", [1]))
        # Rank 0 has gone because of the victim.
        gone = "rank 2: cannot reach rank 0 at a:1 in time: Connection refused"
        self.assertTrue(connecting.waited(gone))
        self.assertTrue(connecting.explains(gone, [1]))
        self.assertTrue(connecting.explains("rank 5 (10.0.0.1) has ended", [5]))
        self.assertFalse(connecting.explains("rank 55 (10.0.0.1) has ended", [5]))


class Opening(unittest.TestCase):
    def test_says_how_long_the_slowest_rank_took(self):
        rows = run(opening, "--ranks", "1,3", "--rounds", "2")
        self.assertEqual([(row["ranks"], row["meeting"]) for row in rows],
                         [(1, "tcp"), (1, "file"), (3, "tcp"), (3, "file")])
        for row in rows:
            self.assertGreater(row["least_ms"], 0)
            self.assertLessEqual(row["least_ms"], row["median_ms"])
            self.assertLessEqual(row["median_ms"], row["most_ms"])

    def test_choices_are_timed_for_all_collectives(self):
        rows = run(opening, "--choosing", "64")
        for per_host in (1, 8):
            names = [row["collective"] for row in rows
                     if row["per_host"] == per_host]
            self.assertIn("broadcast", names)
            self.assertEqual(names[-1], "group")
        for row in rows:
            self.assertGreater(row["most_us"], 0)
            self.assertLessEqual(row["median_us"], row["most_us"])

    def test_ranks_are_threads_of_a_few_processes_with_the_links_they_need(self):
        for connect, links in (("all", 4), ("needed", 1)):
            row, = run(opening, "--ranks", "5", "--processes", "2", "--connect",
                       connect, "--fabric", "tcp", "--meeting", "file",
                       "--rounds", "1")
            self.assertEqual(row["processes"], 2)
            self.assertGreaterEqual(row["open_links"], links)
            self.assertGreaterEqual(row["collectives_links"],
                                    row["open_links"])
            self.assertGreater(row["open_descriptors"],
                               row["close_descriptors"])


class Choices(unittest.TestCase):
    def test_hindsight_knows_the_other_openings_and_not_its_own(self):
        openings = [{"ring": 10, "tree": 20}, {"ring": 12, "tree": 18},
                    {"ring": 30, "tree": 15}]
        self.assertEqual(choices.hindsight(openings), [2, 1.5, 2])
        openings[2] = {"ring": 9, "tree": 15}
        self.assertEqual(choices.hindsight(openings), [1, 1, 1])

    def test_medians_are_of_the_openings_of_a_job(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows"
            path.write_text("".join(json.dumps({
                "ranks": 4, "per_host": 1, "gbps": [1], "congestion": "cubic",
                "collective": "reduce", "size": 8, "chosen": "tree",
                "time_us": 0, "algorithms": {"ring": {"time_us": 10},
                                             "tree": {"time_us": tree}}})
                + "\n" for tree in (11, 13, 20)))
            with mock.patch.object(sys, "argv", ["choices.py", str(path)]), \
                    contextlib.redirect_stdout(io.StringIO()) as said:
                choices.main()
        self.assertIn("0 up to 1.25; worst: 1.30 reduce of 8 B", said.getvalue())
        self.assertIn("above 1.25: 2 of 3, in hindsight 0", said.getvalue())


class ZeroCopy(unittest.TestCase):
    def test_compares_both_ways_on_each_line(self):
        rows = run(zerocopy, "--sizes", "65536,1048576", "--megabytes", "4",
                   "--rounds", "3", "--gbps", "10")
        self.assertEqual([row["write_bytes"] for row in rows],
                         [65536, 1048576] * (len(rows) // 2))
        self.assertEqual(rows[0]["line"], "loopback")
        # What stays on the host is copied, and the kernel says so.
        self.assertGreater(rows[0]["copied"], 0.5)
        for row in rows:
            self.assertGreater(row["plain_gbps"], 0)
            self.assertGreater(row["zero_gbps"], 0)


FAKE = """#!/bin/sh
echo ready
while read size warmup iterations check root words; do
  case $words in
    die) exit 1 ;;
    fail) echo "error UNAVAILABLE: no peer" ;;
    *) echo "ok $((1 + $GRADIENTFLOW_RANK)) $((10 * check))" ;;
  esac
done
"""


class Allreduce(unittest.TestCase):
    SHORT = ("--min", "4", "--max", "400KB", "--factor", "100", "--iters", "2",
             "--rounds", "2")

    def test_ours_and_the_bare_loop_are_checked_and_timed(self):
        rows = run(collectives, *self.SHORT, "--bound", "--ranks", "3")
        self.assertEqual([row["size"] for row in rows], [4, 400, 40000])
        for row in rows:
            self.assertEqual(row["wrong"], 0)
            self.assertGreater(row["time_us"], 0)
            self.assertGreater(row["bound"]["time_us"], 0)

    def test_ours_and_the_bare_exchange_are_checked_and_timed(self):
        for row in run(collectives, *self.SHORT, "--bound", "--fabric", "tcp"):
            self.assertEqual(row["wrong"], 0)
            self.assertIn("conn", row["bound"]["note"])
            self.assertIn("ns/B", row["ring"]["note"])

    def test_every_algorithm_and_type_has_its_row(self):
        rows = run(collectives, *self.SHORT, "--fabric", "tcp",
                   "--algorithm", "ring,two_sync", "--wire", "float16")
        self.assertEqual([row["algorithm"] for row in rows[:2]],
                         ["ring", "two_sync"])
        self.assertEqual(rows[0]["wire"], "float16")

    def test_what_has_a_root_is_checked_with_the_last_rank_as_root(self):
        rows = run(collectives, *self.SHORT, "--fabric", "tcp", "--ranks", "3",
                   "--collective", ",".join(collectives.ROOTED),
                   "--batch-ms", "1")
        self.assertEqual({row["collective"] for row in rows},
                         set(collectives.ROOTED))
        self.assertEqual(sum(row["wrong"] for row in rows), 0)

    def test_prices_stand_beside_the_times_of_all_algorithms(self):
        for row in run(collectives, *self.SHORT, "--fabric", "tcp", "--ranks",
                       "3", "--best"):
            names = {"ring", "halving_doubling", "two_sync", "one_round"}
            self.assertEqual(set(row["algorithms"]), names)
            for one in row["algorithms"].values():
                self.assertGreater(one["time_us"], 0)
                self.assertGreater(one["price_us"], 0)
            self.assertIn(row["chosen"], names)
            self.assertEqual(len(row["links"]["across"]["alone"]), 5)
            self.assertGreater(row["cpu_ns_per_byte"], 0)

    def test_io_threads_take_a_part_of_the_processor_time(self):
        row, = run(collectives, "--collective", "all_to_all", "--min", "4MB",
                   "--max", "8MB", "--iters", "2", "--rounds", "2", "--fabric",
                   "tcp", "--io-threads", "0,1")
        self.assertEqual(row["wrong"], 0)
        self.assertEqual(row["driver_ns_per_byte"], row["cpu_ns_per_byte"])
        with_one = row["io=1"]
        self.assertLess(with_one["driver_ns_per_byte"],
                        with_one["cpu_ns_per_byte"])

    def test_bare_ring_of_three_ranks_is_checked_and_timed(self):
        for row in run(collectives, *self.SHORT, "--bound", "--fabric", "tcp",
                       "--ranks", "3"):
            self.assertEqual(row["wrong"], 0)
            self.assertGreater(row["ring"]["cpu_ns_per_byte"], 0)
            self.assertNotIn("bound", row)

    def test_sizes_are_whole_elements_without_repetition(self):
        self.assertEqual(collectives.sizes(1, 70, 2, 4), [4, 8, 16, 32, 64])
        self.assertEqual(collectives.sizes(4, 9, 1.5, 4), [4, 8])
        for wrong in ((8, 4, 2, 4), (4, 8, 1, 4), (1, 2, 2, 4)):
            with self.assertRaises(ValueError):
                collectives.sizes(*wrong)

    def team(self, text=FAKE):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "fake"
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        network = collectives.Network(3)
        self.addCleanup(network.close)
        team = start_team("fake", network, [str(path)])
        self.addCleanup(team.close)
        return team

    def test_batch_takes_the_slowest_ranks_time_and_all_wrong_elements(self):
        self.assertEqual(collectives.run_batch(self.team(), "4 0 1 1 -1 x"),
                         (3, 30, None))

    def test_ranks_error_and_ranks_death_are_errors(self):
        team = self.team()
        with self.assertRaisesRegex(RankError, "fake: rank 0: error UNAVAIL"):
            team.ask("4 0 1 0 -1 fail")
        with self.assertRaisesRegex(RankError, "rank 0: ended"):
            self.team().ask("4 0 1 0 -1 die")

    def test_program_that_ends_before_it_is_ready_is_an_error(self):
        with self.assertRaisesRegex(RankError, "before it was ready"):
            self.team("#!/bin/sh\n")


if __name__ == "__main__":
    report_cases.main()
