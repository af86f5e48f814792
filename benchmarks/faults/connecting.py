#!/usr/bin/env python3
"""Kills one to three of many ranks (kill -9) while they meet and connect.

All survivors must end with an error that names one of the killed ranks. The others
wait for a rank that is killed before it joins until the time to join is over, and so
does a rank that joins when the others have gone; such jobs are counted apart. The
time of a job is that of its last survivor, from the first death. The row also says
how busy the cores were meanwhile: where they were busy all the time, the ranks did not
wait for a clock of ours but for a core, and a machine with more cores is faster. A
survivor that is told late and one that is slow to end look alike from outside, so the
median survivor's time is there as well.
"""

import ctypes
import json
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from board import OPENING, RankReport
from lib import report
from lib.network import Network
from lib.ranks import program, start_program

JOIN_SECONDS = 15.0
HANG_SECONDS = 60.0
LOOK_SECONDS = 0.005


class Busy(NamedTuple):
    """Seconds of all cores together since the machine started."""

    total: float
    idle: float

    @staticmethod
    def now() -> "Busy":
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        return Busy(sum(ticks), ticks[3] + ticks[4])

    def percent_since(self, before: "Busy") -> float:
        total = self.total - before.total
        return 100 * (1 - (self.idle - before.idle) / total) if total else 0.0


class Job:
    """Ranks as processes, which end with this object's scope."""

    def __init__(self, args: report.Args, meeting: str) -> None:
        self.ranks = args.ranks
        self._size = ctypes.sizeof(RankReport)
        self._folder = tempfile.TemporaryDirectory()
        descriptor = os.memfd_create("board")
        os.truncate(descriptor, self.ranks * self._size)
        self._board = mmap.mmap(descriptor, self.ranks * self._size)
        self._network = Network(self.ranks)
        where = (f"file://{self._folder.name}" if meeting == "file" else
                 f"{self._network.address}:{self._network.port}")
        job = json.dumps({"board": descriptor, "settings": {
            "rendezvous": where, "fabric": args.fabric,
            "connect": args.connect, "bucket_bytes": "0",
            "join_timeout_seconds": str(JOIN_SECONDS),
            "heartbeat_timeout_seconds": "30"}})
        self.processes = [
            start_program(self._network, rank,
                          [program("../tests/faults/rank"), job], {},
                          pass_fds=[descriptor], stdout=subprocess.DEVNULL)
            for rank in range(self.ranks)]
        os.close(descriptor)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self._network.close()
        self._folder.cleanup()

    def __getitem__(self, rank: int) -> RankReport:
        return RankReport.from_buffer_copy(self._board, rank * self._size)

    def await_phase(self, phase: int) -> bool:
        """Whether all ranks have come to the phase in time."""
        give_up = time.monotonic() + HANG_SECONDS
        for rank in range(self.ranks):
            while self[rank].phase < phase:
                if time.monotonic() > give_up or self[rank].ended_ns:
                    return False
                time.sleep(LOOK_SECONDS)
        return True

    def await_end(self, survivors: list[int]) -> None:
        give_up = time.monotonic() + HANG_SECONDS
        for rank in survivors:
            while not self[rank].ended_ns and time.monotonic() < give_up:
                time.sleep(LOOK_SECONDS)


def opening_seconds(args: report.Args, meeting: str) -> float:
    """How long ranks take from the last one's start to open."""
    with Job(args, meeting) as job:
        job.await_phase(OPENING)
        begin = time.monotonic()
        if not job.await_phase(OPENING + 1):
            raise RuntimeError("the ranks do not open, although none was killed")
        return time.monotonic() - begin


def absent(text: str) -> list[int]:
    """The ranks that an error says did not come, or did not answer, in time."""
    ranks = re.search(r"ranks ([0-9, -]+) of \d+ did not", text)
    if ranks is None:
        return []
    spans = [span.split("-") for span in ranks[1].split(", ")]
    return [rank for span in spans
            for rank in range(int(span[0]), int(span[-1]) + 1)]


def waited(text: str) -> bool:
    """Whether a rank waited until the time to join was over."""
    return bool(absent(text)) or any(
        words in text for words in ("had no word from rank 0", "cannot reach rank 0"))


def explains(text: str, victims: list[int]) -> bool:
    if waited(text):
        return any(rank in victims for rank in absent(text) or victims)
    return any(f"rank {victim} (" in text for victim in victims)


def strike(args: report.Args, meeting: str, dice: random.Random,
           opening: float) -> report.Row:
    victims = dice.sample(range(args.ranks), dice.randint(1, args.victims))
    moments = sorted(dice.uniform(0, opening) for _ in victims)
    survivors = [r for r in range(args.ranks) if r not in victims]
    with Job(args, meeting) as job:
        job.await_phase(OPENING)
        begin, busy, first_ns = time.monotonic(), Busy.now(), 0
        for victim, moment in zip(victims, moments):
            time.sleep(max(0.0, begin + moment - time.monotonic()))
            if not first_ns:
                busy, first_ns = Busy.now(), time.monotonic_ns()
            job.processes[victim].send_signal(signal.SIGKILL)
        job.await_end(survivors)
        percent = Busy.now().percent_since(busy)
        seen = [job[rank] for rank in survivors]
    took = sorted((one.ended_ns - first_ns) * 1e-9 for one in seen
                  if one.ended_ns)
    ended = [one for one in seen if one.ended_ns]
    wrong = [one.text for one in ended
             if one.code == 0 or not explains(one.text, victims)]
    unjoined = any(waited(one.text) for one in ended)
    return {"benchmark": "connecting", "ranks": args.ranks, "meeting": meeting,
            "fabric": args.fabric, "connect": args.connect,
            "victims": victims, "after_ms": 1e3 * moments[0],
            "opening_ms": 1e3 * opening, "hangs": len(survivors) - len(ended),
            "wrong": len(wrong), "wrong_text": wrong[0] if wrong else "",
            "unjoined": unjoined,
            "first_seconds": took[0] if took else 0.0,
            "median_seconds": report.median(took or [0.0]),
            "last_seconds": took[-1] if took else 0.0,
            "busy_percent": percent}


def options(add: report.Add) -> None:
    add("--ranks", type=report.at_least(4), default=128)
    add("--victims", type=report.at_least(1), default=3, help="at most")
    add("--jobs", type=report.at_least(1), default=40)
    add("--meeting", type=report.some_of(("tcp", "file")), default="tcp,file")
    add("--fabric", choices=("auto", "tcp", "shm"), default="tcp")
    add("--connect", choices=("all", "needed", "auto"), default="auto")
    add("--seed", type=int, default=1)


@report.program(options)
def main(args: report.Args) -> None:
    if args.victims >= args.ranks:
        sys.exit(f"--victims {args.victims} of --ranks {args.ranks}: nobody survives")
    opening = {meeting: opening_seconds(args, meeting)
               for meeting in args.meeting}
    rows = []
    for i in range(args.jobs):
        meeting = args.meeting[i % len(args.meeting)]
        rows.append(strike(args, meeting, random.Random(f"{args.seed} {i}"),
                           opening[meeting]))
        if rows[-1]["wrong"]:
            print(f"#{i}: {rows[-1]['wrong_text']}", flush=True)
    print(report.table(rows, {
        "meeting": "{meeting}", "killed after ms": "{after_ms:.0f}",
        "of ms": "{opening_ms:.0f}", "first s": "{first_seconds:.2f}",
        "median s": "{median_seconds:.2f}", "last s": "{last_seconds:.2f}",
        "cores busy %": "{busy_percent:.0f}", "before joining": "{unjoined:d}",
        "hangs": "{hangs}", "wrong": "{wrong}"}))
    joined = [row for row in rows if not row["unjoined"]]
    within = sum(row["last_seconds"] <= 1 and not row["hangs"] for row in joined)
    print(f"{within} of {len(joined)} jobs in which all ranks had joined ended wholly "
          "within 1 s; the cores were busy "
          f"{report.median(row['busy_percent'] for row in rows):.0f} % of the time "
          "in the median job")
    report.append_json(args.json, rows)
    sys.exit(any(row["hangs"] or row["wrong"] for row in rows))

