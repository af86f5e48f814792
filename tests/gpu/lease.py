#!/usr/bin/env python3
"""Runs jobs on a machine with a GPU that is lent for a short time.

A job is a program with its own time limit: a test, a benchmark or a run of a
sanitizer. Jobs run in the order of jobs.py, the most valuable first. What each has
shown is kept in OUT/jobs.json, so a second call with the same OUT and the same
programs goes on where the first one ran out of time. OUT/gpu.json has the machine,
every row of every benchmark and every verdict: that is the file to commit.

Needs Python 3.8 or newer, and nothing else.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import jobs as catalogue

SANITIZERS_AT_ONCE = 4
SMI_SECONDS = 60  # A broken driver may never answer.


class Lease:
    """The jobs of one bundle on one machine."""

    def __init__(self, folder, out, seconds, clock=time.monotonic):
        self.folder = folder
        self.out = out
        self.clock = clock
        self.end = None if seconds is None else clock() + seconds
        self.needs = json.loads((folder / "needs.json").read_text())
        self.state = self._load()
        self.lock = threading.Lock()
        # What an earlier call has shown. What it had to skip may run now.
        self.kept = {name for name, job in self.state["jobs"].items()
                     if job["passed"] or job["failed"]}

    def _load(self):
        path = self.out / "jobs.json"
        if path.exists():
            state = json.loads(path.read_text())
            if state.get("programs") == self.needs["programs"]:
                return state
            print("gpu: OUT is of other programs; everything runs anew")
        return {"programs": self.needs["programs"], "jobs": {}}

    def left(self):
        return float("inf") if self.end is None else self.end - self.clock()

    def record(self, job, **what):
        verdict = {"passed": 0, "failed": 0, "skipped": 0, "why": "", "rows": [],
                   **what}
        with self.lock:
            self.state["jobs"][job.name] = verdict
            write(self.out / "jobs.json", self.state)

    def run(self, job, why_not):
        """Runs the job, unless `why_not` says that it cannot run here."""
        missing = why_not or job.missing(self.folder)
        if missing:
            self.record(job, skipped=1, why=missing)
            return
        limit = min(job.seconds, self.left())
        print(f"== {job.name}", flush=True)
        began = self.clock()
        rows = self.out / (re.sub(r"\W", "_", job.name) + ".jsonl")
        rows.unlink(missing_ok=True)
        text, code = execute(job, self.folder, rows, limit)
        took = self.clock() - began
        with self.lock, open(self.out / "log.txt", "a", encoding="utf-8") as log:
            log.write(f"== {job.name}: {' '.join(job.command)}\n{text}"
                      f"== {job.name}: ended with {code} after {took:.0f} s\n")
        found = [json.loads(line) for line in lines_of(rows)]
        rows.unlink(missing_ok=True)
        if code is None and limit < job.seconds:
            # The lease is over, not the patience with the job.
            print(f"gpu: the time is up after {took:.0f} s of {job.name}")
            return
        verdict = job.judge(text, code)
        if verdict["failed"] or verdict["skipped"]:
            print(summary_of(text))
        self.record(job, seconds=round(took, 1), rows=found, **verdict)

    def go(self, wanted):
        """Returns the names of the jobs that are left for another call."""
        why_not = no_gpu(self.needs)
        if why_not:
            print(f"SKIPPED: {why_not}")
        todo = [job for job in catalogue.all_jobs(gpus=len(gpus()))
                if job.part in wanted and job.name not in self.kept]
        for job in todo:
            self.state["jobs"].pop(job.name, None)

        def try_it(job):
            # A job that cannot come to its usual end would only cost time.
            if why_not or self.left() >= job.usual:
                self.run(job, why_not)

        # Sanitizers are slow, and nobody times them: several at once.
        for job in todo:
            if job.part != "sanitizers":
                try_it(job)
        with concurrent.futures.ThreadPoolExecutor(SANITIZERS_AT_ONCE) as pool:
            list(pool.map(try_it, [j for j in todo if j.part == "sanitizers"]))
        return [job.name for job in todo if job.name not in self.state["jobs"]]


def execute(job, folder, rows, limit):
    """Returns what the job printed, and its exit status; None: it was killed."""
    def filled(text):
        return text.replace("{json}", str(rows)).replace("{folder}", str(folder))

    command = [filled(part) for part in job.command]
    if command[0] == catalogue.SANITIZER:
        command[0] = catalogue.sanitizer(folder)
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path(folder),
                   **{k: filled(v) for k, v in job.environment.items()}}
    with subprocess.Popen(command, cwd=folder, env=environment,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True) as child:
        try:
            return child.communicate(timeout=limit)[0], child.returncode
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            return child.communicate()[0], None


def library_path(folder):
    """Where libnccl may be: the loader's path, the bundle, Python's packages."""
    found = [os.environ.get("LD_LIBRARY_PATH", ""), str(folder / "nccl")]
    for entry in sys.path:
        found += [str(p.parent) for p in
                  pathlib.Path(entry or ".").glob("nvidia/*/lib/libnccl.so.2")]
    found += ["/usr/local/cuda/lib64"]
    return ":".join(dict.fromkeys(p for p in found if p))


def gpus():
    """What nvidia-smi says: a row of name, driver and memory for each GPU."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total",
             "--format=csv,noheader"], capture_output=True, text=True, check=False,
            timeout=SMI_SECONDS)
    except subprocess.TimeoutExpired:
        return []
    rows = asked.stdout.splitlines() if asked.returncode == 0 else []
    cells = [[cell.strip() for cell in row.split(",")] for row in rows]
    return [row for row in cells if len(row) == 3]


def no_gpu(needs):
    """Why nothing can run on this machine; empty if it can."""
    seen = gpus()
    if not seen:
        return "nvidia-smi shows no GPU here"
    driver = seen[0][1]
    number = re.match(r"\d+", driver)
    if number is None:
        return f"nvidia-smi tells no version of the driver, but {driver!r}"
    if int(number.group()) < needs["driver"]:
        return (f"the driver is {driver}; programs of CUDA {needs['cuda']} need "
                f"{needs['driver']} or newer")
    return ""


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []


def summary_of(text):
    """The output without the cases that passed, at most 60 lines."""
    told = [line for line in text.splitlines()
            if not re.match(r"\[ RUN  |\[       OK ", line)]
    return "\n".join(told[:60])


def write(path, what):
    """Whole, or not at all: a lease may end at any moment."""
    half = path.with_suffix(".tmp")
    half.write_text(json.dumps(what, indent=1) + "\n")
    half.replace(path)


def machine(needs):
    cpu = re.search(r"model name\s*:\s*(.*)",
                    pathlib.Path("/proc/cpuinfo").read_text())
    seen = gpus()
    return {"gpus": [row[0] for row in seen], "driver": seen[0][1] if seen else "",
            "memory": seen[0][2] if seen else "", "cuda": needs["cuda"],
            "cpu": cpu.group(1) if cpu else "", "cores": os.cpu_count(),
            "commit": needs["commit"],
            "date": datetime.date.today().isoformat()}


def report(lease, later):
    done = lease.state["jobs"]
    write(lease.out / "gpu.json",
          {"machine": machine(lease.needs), "jobs": done, "left": later})
    print("== summary; all output: " + str(lease.out / "log.txt"))
    for name, job in done.items():
        print(f"{name:34} {job['passed']:4} passed {job['failed']:3} failed "
              f"{job['skipped']:3} skipped  {job['why']}")
    missed = sum(row.get("met") is False for job in done.values()
                 for row in job["rows"])
    if missed:
        print(f"targets missed: {missed}")
    if later:
        print(f"LEFT {len(later)}: {', '.join(later)}. The same command goes on "
              "with these.")
    total = {k: sum(job[k] for job in done.values())
             for k in ("passed", "failed", "skipped")}
    if total["skipped"]:
        print(f"SKIPPED {total['skipped']}; each is named above with why.")
    print(f"{total['passed']} passed, {total['failed']} failed, "
          f"{total['skipped']} skipped")
    return total["failed"]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--only", default=",".join(catalogue.PARTS))
    options = parser.parse_args(arguments)
    wanted = options.only.split(",")
    for part in wanted:
        if part not in catalogue.PARTS:
            parser.error(f"--only {part}: expected {', '.join(catalogue.PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    lease = Lease(options.programs.resolve(), options.out.resolve(),
                  options.seconds)
    later = lease.go(wanted)
    return 1 if report(lease, later) else 0


if __name__ == "__main__":
    sys.exit(main())
