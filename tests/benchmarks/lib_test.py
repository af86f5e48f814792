#!/usr/bin/env python3
"""Tests of the benchmarks' networks, ranks, rows and models."""

import pathlib
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.path[:0] = ["benchmarks", str(pathlib.Path(__file__).parent)]
from lib import models, report  # noqa: E402
from lib import network as network_module  # noqa: E402
from lib.network import Network  # noqa: E402
from lib.ranks import RankError, run_functions, run_programs  # noqa: E402
import report_cases  # noqa: E402
from rank_functions import (congestion, die_on_one,  # noqa: E402
                            interfaces, raise_on_one, seconds_to_receive)


def links_or_skip(ranks, gbps, **settings):
    try:
        return Network(ranks, gbps, **settings)
    except OSError as error:
        raise unittest.SkipTest(f"needs root, ip and tc: {error}")


class NetworkTest(unittest.TestCase):
    def test_stream_gets_most_of_the_links_rate_and_no_more(self):
        # Each end's bucket lets 128 KiB pass at once. Whatever else this machine
        # does can only make a stream slower, so one of several is quick enough.
        size, rate, buckets = 12 << 20, 0.2e9 / 8, 2 * 131072
        for _ in range(5):
            with links_or_skip(2, 0.2) as network:
                seconds = run_functions(seconds_to_receive, network, size)[0]
            self.assertGreater(seconds, (size - buckets) / rate)
            if seconds < 2 * size / rate:
                return
        self.fail(f"{size} bytes took {seconds:.2f} s")

    def test_an_exact_link_takes_nearly_as_long_as_a_line(self):
        # 1.25 units of 4 KiB may pass at once; the headers are not counted.
        size, rate = 64 << 10, 0.2e9 / 8
        with links_or_skip(2, 0.2, exact=True) as network:
            seconds = run_functions(seconds_to_receive, network, size)[0]
        self.assertGreater(seconds, (size - 5120) / rate)

    def test_a_host_may_have_a_slower_link(self):
        size, rate, buckets = 6 << 20, 0.2e9 / 8, 2 * 131072
        with links_or_skip(2, 1, hosts_gbps=[1, 0.2]) as network:
            seconds = run_functions(seconds_to_receive, network, size)[0]
        self.assertGreater(seconds, (size - buckets) / rate)

    def test_each_host_has_one_interface_and_this_process_keeps_its_own(self):
        before = interfaces(0)
        with links_or_skip(3, 1) as network:
            self.assertEqual(interfaces(0), before)
            for seen in run_functions(interfaces, network):
                self.assertIn("eth0", seen)
                self.assertNotIn("bridge0", seen)

    def test_connections_have_the_congestion_control_that_the_network_names(self):
        for gbps in (None, 1):
            for asked, expected in ((None, "cubic"), ("reno", "reno")):
                with links_or_skip(2, gbps, congestion=asked) as network:
                    if network.shared:
                        self.skipTest("needs root")
                    self.assertEqual(network.congestion, expected)
                    self.assertEqual(
                        run_functions(congestion, network, network.address),
                        [expected] * 2)
            with self.assertRaisesRegex(OSError, "congctl no_such"):
                Network(2, gbps, congestion="no_such")

    def test_without_the_right_links_are_paced_if_that_is_allowed(self):
        with mock.patch.object(network_module, "_new_namespace",
                               side_effect=PermissionError):
            with self.assertRaises(PermissionError):
                Network(2, 1)
            with self.assertRaises(ValueError):
                Network(3, 1, pacing=True)
            with Network(2, 1, pacing=True) as network:
                self.assertEqual(network.bytes_per_second, 125000000)
                self.assertEqual(
                    network.environment(1)["GRADIENTFLOW_CONNECTIONS"], "1")
                self.assertIn("SO_MAX_PACING_RATE", network.how)
                here = pathlib.Path(
                    "/proc/sys/net/ipv4/tcp_congestion_control").read_text()
                self.assertEqual(network.congestion, here.strip())
            with self.assertRaises(PermissionError):
                Network(2, congestion="no_such")
            with Network(3) as network:
                self.assertTrue(network.shared)
                self.assertEqual(network.bytes_per_second, 0)

    def test_settings_out_of_range_are_errors(self):
        for ranks, gbps in ((0, None), (251, None), (2, -1.0), (2, 1e9)):
            with self.assertRaises(ValueError):
                Network(ranks, gbps)
        with self.assertRaisesRegex(ValueError, "rates of 2 hosts' links, got 1"):
            Network(4, 1, per_host=2, hosts_gbps=[1, 1, 1])
        with self.assertRaisesRegex(ValueError, "expected links.* got None"):
            Network(2, hosts_gbps=[1, 1])


class RanksTest(unittest.TestCase):
    def test_failure_of_one_rank_ends_all_and_is_told(self):
        for function, code in ((raise_on_one, 1), (die_on_one, 7)):
            with Network(2) as network:
                with self.assertRaisesRegex(
                        RankError,
                        f"{function.__name__}: rank 1 ended with {code}"):
                    run_functions(function, network)

    def program(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "rank"
        path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def test_programs_are_told_who_they_are_and_their_job(self):
        rank = self.program('echo "[$GRADIENTFLOW_RANK, $GRADIENTFLOW_SIZE, '
                            '$1, \\"$GRADIENTFLOW_FABRIC\\"]"')
        with Network(3) as network:
            self.assertEqual(
                run_programs(network, rank, {"a": 5},
                             {"GRADIENTFLOW_FABRIC": "tcp"}),
                [[rank, 3, {"a": 5, "bytes_per_second": 0}, "tcp"]
                 for rank in range(3)])

    def test_failure_of_one_program_ends_all(self):
        rank = self.program('[ $GRADIENTFLOW_RANK = 1 ] && exit 5; '
                            'exec sleep 60')
        began = time.monotonic()
        with Network(2) as network:
            with self.assertRaisesRegex(RankError, "rank 1 ended with 5"):
                run_programs(network, rank, {})
        self.assertLess(time.monotonic() - began, 30)


class ReportTest(unittest.TestCase):
    def test_quantiles_are_those_of_the_library(self):
        # As tests/base/quantile_test.cc.
        for values, share, expected in (
                ([5, 1, 4, 2], 0, 1), ([5, 1, 4, 2], 1, 5), ([5, 1, 4, 2], 0.5, 3),
                ([5, 1, 4], 0.5, 4), ([1, 2, 4], 0.75, 3), ([7], 0.99, 7),
                ([2, float("inf"), float("inf")], 0.75, float("inf"))):
            self.assertEqual(report.quantile(values, share), expected)
            if share == 0.5:
                self.assertEqual(report.median(values), expected)

    def test_ratio_is_the_median_of_the_rounds(self):
        self.assertEqual(report.median_ratio([2, 9, 8], [1, 3, 1]), 3)

    def test_rows_are_appended_with_machine_and_date(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows"
            report.append_json(path, [{"a": 1}])
            report.append_json(path, [{"a": 2}])
            lines = path.read_text().splitlines()
        self.assertEqual(len(lines), 2)
        self.assertIn('"a": 2', lines[1])
        self.assertIn(report.machine(), lines[1])

    def test_table_aligns_the_first_column_to_the_left(self):
        rows = [{"name": "long", "x": 1}, {"name": "b", "x": None}, {"name": ""}]
        self.assertEqual(report.table(rows, {"a": "{name}", "b": "{x:.1f}"}),
                         "a       b\nlong  1.0\nb       -\n        -")


class ModelsTest(unittest.TestCase):
    def test_tables_have_the_published_tensors_and_parameters(self):
        published = {
            "alexnet_bn": (26, 60967976), "resnet50_gf": (153, 25549352),
            "alexnet": (16, 61100840), "resnet50": (161, 25557032),
            "resnet101": (314, 44549160), "vgg16": (32, 138357544)}
        self.assertEqual(set(models.NAMES), set(published))
        for name in models.NAMES:
            tensors = models.load(name)["tensors"]
            self.assertEqual((len(tensors),
                              sum(t["elements"] for t in tensors)),
                             published[name], name)

    def test_measured_times_are_those_of_the_profiles(self):
        model = models.load("alexnet_bn")
        self.assertAlmostEqual(model["backward_seconds"], 15.426e-3, 9)
        self.assertAlmostEqual(model["rest_seconds"], 34.7e-3 - 15.426e-3, 9)
        self.assertAlmostEqual(model["tensors"][-1]["ready_seconds"], 0.271e-3)
        self.assertAlmostEqual(models.load("resnet50_gf")["backward_seconds"],
                               121.046e-3, 9)

    def test_derived_times_follow_the_operations_at_the_familys_rate(self):
        vgg = models.load("vgg16")
        self.assertAlmostEqual(vgg["backward_seconds"],
                               15.426e-3 * 30954148840 / 1449977416,
                               delta=1e-6)
        self.assertAlmostEqual(vgg["rest_seconds"] / vgg["backward_seconds"],
                               (34.7 - 15.426) / 15.426, 6)

    def test_gradients_become_ready_last_to_first(self):
        for name in models.NAMES:
            model = models.load(name)
            times = [t["ready_seconds"] for t in model["tensors"]]
            self.assertEqual(times, sorted(times, reverse=True), name)
            self.assertAlmostEqual(times[0], model["backward_seconds"])

    def test_times_scale_with_the_batch(self):
        whole, half = models.load("alexnet_bn"), models.load("alexnet_bn", 64)
        self.assertAlmostEqual(half["rest_seconds"], whole["rest_seconds"] / 2)
        self.assertAlmostEqual(half["tensors"][3]["ready_seconds"],
                               whole["tensors"][3]["ready_seconds"] / 2)

    def test_profiles_have_the_tensors_of_their_models_last_to_first(self):
        for name in models.MEASURED:
            profile = models.rows(models.DATA / "profiles" /
                                  f"{name}_v100_fp16_b128.csv")
            self.assertEqual(
                [(row["name"], int(row["numel"])) for row in profile],
                [(tensor["name"], tensor["elements"])
                 for tensor in models.load(name)["tensors"][::-1]])

    def test_unknown_names_and_empty_batches_are_errors(self):
        for name, batch in (("lenet", 128), ("vgg16", 0)):
            with self.assertRaises(ValueError):
                models.load(name, batch)


if __name__ == "__main__":
    report_cases.main()
