"""What a machine with a GPU has to show, the most valuable first.

A machine is lent for some minutes, so the order counts: tests of kernels and of the
device say whether anything is right at all; then come the numbers, which only a GPU
can give, and the sanitizer's look at memory, since its other tools take longer.
"""

import dataclasses
import pathlib
import re
import shutil
import typing

PARTS = ("tests", "benchmarks", "sanitizers")
NO_DEVICE = 3  # The exit status of our benchmarks where there is no GPU.
SANITIZER = "compute-sanitizer"


@dataclasses.dataclass
class Job:
    name: str
    part: str
    # Runs in the folder of the bundle, whose path replaces {folder}. A benchmark
    # writes its rows to {json}.
    command: typing.List[str]
    usual: float  # Seconds on a good day: it is not begun with less.
    seconds: float  # Killed after these.
    environment: dict = dataclasses.field(default_factory=dict)
    tools: typing.Sequence[str] = ()  # Programs of the machine that it calls.

    def missing(self, folder):
        """Why the job cannot run, as far as files tell; empty if it can."""
        for program in re.findall(r"\bbin/[\w/]+", " ".join(self.command)):
            if not (folder / program).exists():
                return f"{program} is not in the bundle"
        for tool in self.tools:
            if not shutil.which(tool):
                return f"no {tool} on this machine"
        if self.command[0] == SANITIZER and not sanitizer(folder):
            return "no compute-sanitizer in the bundle, nor on this machine"
        return ""

    def judge(self, text, code):
        """Counts passed, failed and skipped by what the job printed."""
        ended = "" if code == 0 else (
            f"killed after {self.seconds:g} s" if code is None
            else f"ended with {code}")
        if re.search(r"^SKIPPED: ", text, re.M) or code == NO_DEVICE:
            return {"passed": 0, "failed": 0, "skipped": 1, "why": "no device"}
        if self.part != "tests":
            return {"passed": int(code == 0), "failed": int(code != 0),
                    "skipped": 0, "why": ended}
        passed = len(re.findall(r"^\[       OK \]", text, re.M))
        failed = len(re.findall(r"^\[  FAILED  \] .* ms\)$", text, re.M))
        skipped = len(re.findall(r"^\[  SKIPPED \] .* ms\)$", text, re.M))
        # A crash, a time-out, or no tests at all.
        if not failed and (code != 0 or passed + skipped == 0):
            failed = 1
        return {"passed": passed, "failed": failed, "skipped": skipped,
                "why": ended}


def sanitizer(folder):
    """The bundle's compute-sanitizer, or this machine's; None: there is none."""
    own = pathlib.Path(folder) / "sanitizer" / SANITIZER
    if own.exists():
        return str(own)
    return shutil.which(SANITIZER) or shutil.which(SANITIZER,
                                                   path="/usr/local/cuda/bin")


def test(name, usual, seconds=400):
    return Job(name, "tests", [f"bin/{name}"], usual, seconds)


def benchmark(name, command, usual, environment=None, tools=()):
    return Job(name, "benchmarks", command, usual, 500, environment or {}, tools)


def checked(tool, name, usual):
    return Job(f"{tool} {name}", "sanitizers",
               [SANITIZER, "--tool", tool, "--error-exitcode", "9",
                f"bin/{name}"], usual, 580)


def scaling(ranks):
    return benchmark(
        f"scaling, ranks: {ranks}",
        ["python3", "benchmarks/scaling/scaling.py", "--device", "cuda", "--links",
         "shm", "--ranks", str(ranks), "--json", "{json}"], 40,
        {"BENCHMARK_PROGRAMS": "{folder}/bin", "PYTHONPATH": "{folder}/benchmarks"},
        ["ip"])  # It makes the ranks' links.


ENGINE = "bin/engine --plan benchmarks/alexnet_bn.json"


def engine(ranks):
    """Rank 0 has GPU 0 and writes the rows; rank 1, if any, has GPU 1."""
    lines = [f"{ENGINE} --json {{json}}"]
    if ranks == 2:
        lines = [f"GRADIENTFLOW_RANK=1 {ENGINE} --device 1 & other=$!",
                 *lines, "first=$?; wait $other && exit $first"]
    return benchmark(
        f"engine, ranks: {ranks}", ["bash", "-c", "\n".join(lines)], 30,
        {"GRADIENTFLOW_RANK": "0", "GRADIENTFLOW_SIZE": str(ranks),
         "GRADIENTFLOW_RENDEZVOUS": "127.0.0.1:29471",
         "GRADIENTFLOW_SOCKET_IFNAME": "lo"})


def all_jobs(gpus):
    kernels = ["element_kernels_test", "chunk_kernels_test"]
    jobs = [test(name, 20) for name in kernels]
    jobs += [test("device_test", 10), test("session_test", 20),
             test("nccl_ranks_test", 30),
             benchmark("kernels", ["bin/gpu_kernels", "--json", "{json}"], 60),
             benchmark("csc path",
                       ["bin/gpu_kernels", "--csc", "--json", "{json}"], 30),
             engine(1)]
    jobs += [checked("memcheck", name, 60) for name in kernels]
    # Ranks that share a GPU cannot use NCCL.
    jobs += [scaling(1)]
    jobs += [engine(2), scaling(2)] if gpus > 1 else []
    for tool in ("racecheck", "synccheck", "initcheck"):
        jobs += [checked(tool, name, 120) for name in kernels]
    return jobs
