#!/usr/bin/python3
"""A lease of a machine with a GPU, with programs and a driver that only pretend."""

import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, "tests/gpu")
import jobs  # noqa: E402
import lease  # noqa: E402

PASSES = 'echo "[       OK ] Suite.Case (1 ms)"'
ROWS = 'echo \'{"kernel": "x", "met": false}\' >"$2"'


class Pretended(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        top = pathlib.Path(holder.name)
        self.folder, self.out, path = top / "bundle", top / "out", top / "path"
        path.mkdir()
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "needs.json").write_text(json.dumps(
            {"cuda": "13.0", "driver": 580, "commit": "abc", "programs": "p1"}))
        self.path = path
        self.driver("580.65.06")
        self.ran = top / "ran"
        self.ran.touch()
        for patch in (
                mock.patch.dict(os.environ, {"PATH": f"{path}:{os.environ['PATH']}",
                                             "RAN": str(self.ran)}),
                mock.patch.object(jobs, "all_jobs", self.all_jobs)):
            patch.start()
            self.addCleanup(patch.stop)
        self.jobs = []

    def all_jobs(self, gpus):
        self.gpus = gpus
        return self.jobs

    def driver(self, version, gpus=1):
        self.script(self.path / "nvidia-smi",
                    f"for i in $(seq {gpus}); do echo 'NVIDIA X, {version}, "
                    "80 MiB'; done")

    @staticmethod
    def script(path, body):
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def program(self, name, body, part="tests", usual=0.0, seconds=60.0):
        """A program that writes down its name as it starts."""
        self.script(self.folder / "bin" / name, f'echo {name} >>"$RAN"\n{body}')
        command = [f"bin/{name}"]
        if part == "benchmarks":
            command += ["--json", "{json}"]
        if part == "sanitizers":
            command = [jobs.SANITIZER, *command]
        self.jobs.append(jobs.Job(name, part, command, usual, seconds))

    def run_lease(self, *more):
        code = lease.main(["--programs", str(self.folder), "--out", str(self.out),
                           *more])
        return code, json.loads((self.out / "gpu.json").read_text())

    def started(self):
        return self.ran.read_text().split()


class Lease(Pretended):
    def test_verdicts_and_rows_are_written(self):
        self.program("good", PASSES)
        self.program("bad", f'{PASSES}\necho "[  FAILED  ] S.C (2 ms)"; exit 1')
        self.program("crash", f"{PASSES}\nkill -SEGV $$")
        self.program("empty", "true")
        self.program("speed", ROWS, "benchmarks")
        code, said = self.run_lease()
        self.assertEqual(code, 1)
        counts = {name: (job["passed"], job["failed"], job["skipped"])
                  for name, job in said["jobs"].items()}
        self.assertEqual(counts, {"good": (1, 0, 0), "bad": (1, 1, 0),
                                  "crash": (1, 1, 0), "empty": (0, 1, 0),
                                  "speed": (1, 0, 0)})
        self.assertEqual(said["jobs"]["speed"]["rows"],
                         [{"kernel": "x", "met": False}])
        self.assertEqual(said["machine"]["gpus"], ["NVIDIA X"])
        self.assertEqual(said["machine"]["driver"], "580.65.06")
        self.assertEqual(said["left"], [])

    def test_a_job_without_its_tools_is_skipped(self):
        self.program("linked", PASSES)
        self.jobs[-1].tools = ["sh", "no-such-tool"]
        code, said = self.run_lease()
        self.assertEqual((code, said["jobs"]["linked"]["skipped"]), (0, 1))
        self.assertEqual(said["jobs"]["linked"]["why"],
                         "no no-such-tool on this machine")

    def test_a_second_call_goes_on_where_the_time_ran_out(self):
        self.program("first", PASSES)
        self.program("long", PASSES, usual=1000)
        self.program("short", PASSES)
        code, said = self.run_lease("--seconds", "500")
        self.assertEqual((code, said["left"]), (0, ["long"]))
        self.assertEqual(self.started(), ["first", "short"])
        code, said = self.run_lease("--seconds", "5000")
        self.assertEqual((code, said["left"]), (0, []))
        self.assertEqual(self.started(), ["first", "short", "long"])
        self.assertEqual(said["jobs"]["first"]["passed"], 1)

    def test_what_the_lease_cuts_short_is_left_and_not_failed(self):
        self.program("cut", "exec cat /dev/zero >/dev/null")
        code, said = self.run_lease("--seconds", "0.5")
        self.assertEqual((code, said["left"], said["jobs"]), (0, ["cut"], {}))

    def test_what_outlasts_its_own_limit_has_failed(self):
        self.program("stuck", "exec cat /dev/zero >/dev/null", seconds=0.2)
        code, said = self.run_lease()
        self.assertEqual(code, 1)
        self.assertIn("killed after", said["jobs"]["stuck"]["why"])

    def test_other_programs_begin_anew(self):
        self.program("one", PASSES)
        self.run_lease()
        needs = json.loads((self.folder / "needs.json").read_text())
        (self.folder / "needs.json").write_text(
            json.dumps({**needs, "programs": "p2"}))
        self.run_lease()
        self.assertEqual(self.started(), ["one", "one"])

    def test_an_old_driver_and_no_gpu_skip_everything_and_say_why(self):
        self.program("one", PASSES)
        for version, gpus, why in (("570.1", 1, "need 580"), ("580.1", 0, "no GPU")):
            self.driver(version, gpus)
            code, said = self.run_lease()
            self.assertEqual((code, said["jobs"]["one"]["skipped"]), (0, 1))
            self.assertIn(why, said["jobs"]["one"]["why"])
        self.assertEqual(self.started(), [])
        self.driver("580.1")  # What was skipped runs now.
        self.assertEqual(self.run_lease()[1]["jobs"]["one"]["passed"], 1)

    def test_what_the_bundle_lacks_is_skipped(self):
        self.jobs.append(jobs.Job("gone", "tests", ["bin/gone"], 0, 10))
        self.program("checked", "exit 0", "sanitizers")
        with mock.patch.object(jobs, "sanitizer", return_value=None):
            _, said = self.run_lease()
        self.assertIn("not in the bundle", said["jobs"]["gone"]["why"])
        self.assertIn("no compute-sanitizer", said["jobs"]["checked"]["why"])

    def test_sanitizers_run_at_the_same_time_by_the_tool_of_the_bundle(self):
        # Each ends only if all four are there.
        meet = ('for i in $(seq 500); do [ "$(grep -c s "$RAN")" = 4 ] && exit 0; '
                'sleep 0.02; done; exit 9')
        (self.folder / "sanitizer").mkdir()
        self.script(self.folder / "sanitizer" / jobs.SANITIZER, 'exec "$@"')
        for i in range(4):
            self.program(f"s{i}", meet, "sanitizers")
        code, said = self.run_lease()
        self.assertEqual(code, 0, said)

    def test_a_driver_that_tells_nothing_useful_skips_everything(self):
        self.program("one", PASSES)
        for says, why in (("echo 'NVIDIA X, [N/A], 80 MiB'", "no version"),
                          ("echo 'No devices were found'", "no GPU"),
                          ("exit 9", "no GPU"),
                          ("exec sleep 60", "no GPU")):
            self.script(self.path / "nvidia-smi", says)
            with mock.patch.object(lease, "SMI_SECONDS", 0.2):
                code, said = self.run_lease()
            self.assertEqual(code, 0, says)
            self.assertIn(why, said["jobs"]["one"]["why"])
        self.assertEqual(self.started(), [])

    def test_only_names_parts(self):
        self.program("one", PASSES)
        self.program("speed", ROWS, "benchmarks")
        self.run_lease("--only", "benchmarks")
        self.assertEqual(self.started(), ["speed"])
        with self.assertRaises(SystemExit):
            self.run_lease("--only", "speed")


class WithoutNvcc(unittest.TestCase):
    """The command itself, where there is nothing to build with."""

    def run_it(self, *arguments):
        return subprocess.run(
            ["tests/gpu/run", *arguments], capture_output=True, text=True,
            check=False, env={**os.environ, "CUDA_HOME": "/nowhere"})

    def test_everything_is_skipped(self):
        done = self.run_it()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("SKIPPED: no nvcc here, at /nowhere/bin/nvcc", done.stdout)
        self.assertEqual(done.stdout.splitlines()[-1],
                         "0 passed, 0 failed, 1 skipped")

    def test_a_bundle_is_refused(self):
        done = self.run_it("--bundle", "bundle")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no nvcc here", done.stdout)
        self.assertFalse(pathlib.Path("bundle").exists())


class Catalogue(unittest.TestCase):
    def test_two_gpus_have_more_to_show(self):
        one = {job.name for job in jobs.all_jobs(1)}
        two = {job.name for job in jobs.all_jobs(2)}
        self.assertEqual(two - one, {"engine, ranks: 2", "scaling, ranks: 2"})
        self.assertEqual(one - two, set())

    def test_all_four_tools_look_at_all_kernels(self):
        names = {job.name for job in jobs.all_jobs(1) if job.part == "sanitizers"}
        self.assertEqual(len(names), 8)

    def test_every_job_fits_into_a_call_of_ten_minutes(self):
        for job in jobs.all_jobs(2):
            self.assertLess(job.usual, job.seconds, job.name)
            self.assertLess(job.seconds, 600, job.name)


if __name__ == "__main__":
    unittest.main()
