#!/usr/bin/env python3
"""Kills (kill -9) and stops (SIGSTOP) random ranks of a job at random moments.

Survivors must end with an error that names the culprit: within 1 s of a death,
within 1 s of the heartbeat time-out after a stop, within 1 s of the join
time-out if the fault came while the job was opening. They may succeed only if
the victim had handed in everything that the job needs of it. A stopped victim
continues when the others have ended, and must end, too. There must be no wrong
sums, no hangs, and nothing left behind.
"""

from __future__ import annotations

import collections
import json
import mmap
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import NamedTuple

from lib import report
from lib.network import Network
from lib.ranks import program, start_program

STEPS, TENSORS = 6, 5  # As in job.h's JobConfig.
JOIN_SECONDS = 2.0
MARGIN_SECONDS = 1.0
# In a file rendezvous other ranks have this long to read its verdict.
JOIN_GRACE_SECONDS = 5.0
HANG_SECONDS = 12.0  # After that a survivor counts as hanging.
LEAVE_SECONDS = 2.0  # How long an orderly end waits for good-byes.

# The phases of board.h, in order.
PHASES = ("starting", "opening", "backward", "finishing", "optimizer",
          "between steps", "closing", "closed")
OPENING, BACKWARD, CLOSING = 1, 2, 6
UNAVAILABLE, ABORTED, DEADLINE_EXCEEDED = 3, 4, 5  # status.h's codes.
_REPORT = struct.Struct("=i4xQQQqi4096s20x")

# From best to worst; the first three are acceptable.
VERDICTS = ("clean error", "finished", "indirect error", "slow",
            "unclear error", "wrong culprit", "wrong sum", "hang", "unexpected")
GOOD = VERDICTS[:3]
KINDS = ("death", "stop", "opening")


class Report(NamedTuple):
    """board.h's RankReport."""

    phase: int
    step: int
    handed_in: int
    wrong_sums: int
    ended_ns: int
    code: int
    text: str = ""

    def done_its_part(self) -> bool:
        """Whether the rank had handed in everything that the job needs of it:
        the library sends that without further calls of the rank. Then others
        may succeed; their sums, which are checked, show that it was sent."""
        if self.phase >= CLOSING:
            return True
        if self.phase < BACKWARD or self.step + 1 < STEPS:
            return False
        return self.phase > BACKWARD or self.handed_in == TENSORS


@dataclass
class Fault:
    """What happens to one rank, and when; `delay` counts from the moment at
    which the rank reaches `phase`."""

    fabric: str
    settings: dict[str, str]
    victim: int
    stop: bool
    phase: int
    step: int
    delay: float

    @property
    def heartbeat_seconds(self) -> float:
        return float(self.settings["heartbeat_timeout_seconds"])

    def __str__(self) -> str:
        return (f"{self.fabric}, {'stop' if self.stop else 'kill'} of rank "
                f"{self.victim} in {PHASES[self.phase]} of step {self.step} + "
                f"{1e3 * self.delay:.3f} ms, {self.settings}")


def draw(seed: int, index: int, ranks: int, fabric: str,
         heartbeat_seconds: float) -> Fault:
    """Returns the `index`-th random fault; it depends on the arguments only."""
    dice = random.Random(f"{seed} {index}")
    phase = dice.choice((1, 1, 2, 2, 3, 3, 4, 5, 6))
    return Fault(
        fabric=fabric, victim=dice.randrange(ranks), stop=dice.random() < 0.5,
        phase=phase, step=dice.randrange(STEPS),
        # Opening takes some 30 ms, a phase of a step about 1 ms.
        delay=dice.uniform(0, 0.04 if phase == OPENING else 0.0025),
        settings={
            "bucket_bytes": dice.choice(("0", "64KB", "inf", "auto")),
            "wire_dtype": dice.choice(("float32", "float16")),
            "rendezvous": dice.choice(("file", "tcp")),
            "heartbeat_timeout_seconds": str(heartbeat_seconds),
            "join_timeout_seconds": str(JOIN_SECONDS)})


def _mapped(path: str) -> bool:
    """Whether a living process maps the file, or the file has gone."""
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            if path in maps.read_text():
                return True
        except OSError:
            continue
    return not os.path.exists(path)


class Trial:
    """Runs the job in processes of its own, and applies `fault` to it."""

    def __init__(self, fault: Fault, ranks: int, folder: str) -> None:
        self.fault = fault
        self.verdict, self.what = GOOD[0], ""  # Those of the worst survivor.
        self.detection_seconds: list[float] = []
        self.leftovers: list[str] = []
        self._folder = folder
        self._shm = set(os.listdir("/dev/shm"))
        self._files = set(os.listdir(folder))
        descriptor = os.memfd_create("board")
        os.truncate(descriptor, ranks * _REPORT.size)
        self._board = mmap.mmap(descriptor, ranks * _REPORT.size)
        with Network(ranks) as network:
            self._start(network, descriptor)
            os.close(descriptor)
            self._strike()
            self._await_survivors()
            for rank in range(ranks):
                if rank != fault.victim:
                    self._judge(rank)
            self._judge_victim()
            self._find_leftovers()
            for process in self._processes:
                process.kill()
                process.wait()

    def __getitem__(self, rank: int) -> Report:
        *numbers, text = _REPORT.unpack_from(self._board, rank * _REPORT.size)
        return Report(*numbers, text.partition(b"\0")[0].decode())

    @property
    def good(self) -> bool:
        return self.verdict in GOOD and not self.leftovers

    @property
    def opening(self) -> bool:
        return self.phase <= OPENING

    @property
    def kind(self) -> str:
        return KINDS[2 if self.opening else self.fault.stop]

    def _start(self, network: Network, descriptor: int) -> None:
        settings = dict(self.fault.settings)
        settings["rendezvous"] = (f"{network.address}:{network.port}"
                                  if settings["rendezvous"] == "tcp" else
                                  f"file://{self._folder}")
        job = json.dumps({"board": descriptor, "settings": settings,
                          "fabric": self.fault.fabric})
        self._processes: list[subprocess.Popen[str]] = []
        for rank in range(network.ranks):
            group = self._processes[0].pid if self._processes else 0
            self._processes.append(start_program(
                network, rank, [program("faults/rank"), job], {}, pass_fds=[descriptor],
                process_group=group, stdout=subprocess.DEVNULL))

    def _there(self, victim: Report) -> bool:
        fault = self.fault
        if fault.phase <= OPENING:
            return victim.phase >= fault.phase
        if victim.phase >= CLOSING:
            return True
        return (OPENING < victim.phase and fault.phase < CLOSING and
                (victim.step, victim.phase) >= (fault.step, fault.phase))

    def _strike(self) -> None:
        give_up = time.monotonic() + HANG_SECONDS
        victim = self[self.fault.victim]
        while (not self._there(victim) and time.monotonic() < give_up and
               not victim.ended_ns):
            time.sleep(50e-6)
            victim = self[self.fault.victim]
        time.sleep(self.fault.delay)
        self._struck_ns = time.monotonic_ns()
        self._processes[self.fault.victim].send_signal(
            signal.SIGSTOP if self.fault.stop else signal.SIGKILL)

    def _ends(self, rank: int, seconds: float) -> bool:
        try:
            self._processes[rank].wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _await_survivors(self) -> None:
        give_up = self._struck_ns * 1e-9 + HANG_SECONDS
        for rank in range(len(self._processes)):
            if rank != self.fault.victim:
                self._ends(rank, give_up - time.monotonic())
        # The victim ran on for a moment between the check and the signal.
        victim = self[self.fault.victim]
        self.phase, self.step = victim.phase, victim.step
        self._done_its_part = victim.done_its_part()

    def _note(self, verdict: str, what: str) -> None:
        if VERDICTS.index(verdict) >= VERDICTS.index(self.verdict):
            if verdict != self.verdict or not self.what:
                self.what = what
            self.verdict = verdict

    def _judge(self, rank: int) -> None:
        seen, who = self[rank], f"rank {rank}: "
        seconds = (seen.ended_ns - self._struck_ns) * 1e-9
        if not seen.ended_ns:
            crashed = self._ends(rank, 0)
            self._note("unexpected" if crashed else "hang",
                       f"{who}{'crashed' if crashed else 'hangs'} in "
                       f"{PHASES[seen.phase]} of step {seen.step}")
        elif seen.wrong_sums:
            self._note("wrong sum", f"{who}{seen.wrong_sums} wrong elements; "
                                    f"{seen.text}")
        elif seen.code == 0:
            in_time = seconds <= LEAVE_SECONDS + MARGIN_SECONDS
            self._note("unexpected" if not self._done_its_part else
                       "finished" if in_time else "slow",
                       f"{who}succeeded after {seconds:.3f} s")
        else:
            self.detection_seconds.append(seconds)
            self._note(self._judge_error(seen, seconds),
                       f"{who}code {seen.code} after {seconds:.3f} s: "
                       f"{seen.text}")

    def _limit_seconds(self) -> float:
        stop = self.fault.heartbeat_seconds if self.fault.stop else 0
        if self.opening:
            return (max(JOIN_SECONDS, stop) + MARGIN_SECONDS +
                    JOIN_GRACE_SECONDS)
        return MARGIN_SECONDS + stop

    def _names(self, text: str, rank: int) -> bool:
        # A rank that has not come yet has no address.
        return f"rank {rank} (" in text or (self.opening and bool(re.search(
            rf"rank(s|\(s\))? ([0-9]+, )*{rank}\b", text)))

    def _judge_error(self, seen: Report, seconds: float) -> str:
        if (seen.code not in (UNAVAILABLE, ABORTED, DEADLINE_EXCEEDED) or
                not (self.opening or f"step {seen.step}" in seen.text)):
            return "unclear error"
        if seconds > self._limit_seconds():
            return "slow"
        if self._names(seen.text, self.fault.victim):
            return "clean error"
        if self.opening:
            return "indirect error"
        others = range(len(self._processes))
        return ("wrong culprit" if any(self._names(seen.text, rank)
                                       for rank in others) else "unclear error")

    def _judge_victim(self) -> None:
        """The victim may have any error, but must end and make no wrong sums."""
        victim = self.fault.victim
        who = f"rank {victim}, the victim, "
        if self.fault.stop:
            self._processes[victim].send_signal(signal.SIGCONT)
        ended = self._ends(victim, HANG_SECONDS + JOIN_SECONDS * self.opening)
        seen = self[victim]
        if self.fault.stop and not ended:
            self._note("hang", f"{who}hangs in {PHASES[seen.phase]} of step "
                               f"{seen.step}")
        elif self.fault.stop and not seen.ended_ns:
            self._note("unexpected", f"{who}crashed")
        if seen.wrong_sums:
            self._note("wrong sum", f"{who}{seen.wrong_sums} wrong elements")

    def _find_leftovers(self) -> None:
        try:
            os.killpg(self._processes[0].pid, 0)
            if self.verdict != "hang":
                self.leftovers.append("a process")
        except ProcessLookupError:
            pass
        # Files of other programs on this machine come and go.
        self.leftovers += [f"/dev/shm/{name}"
                           for name in set(os.listdir("/dev/shm")) - self._shm
                           if not _mapped(f"/dev/shm/{name}")]
        # A rank that is killed among the files of a rendezvous cannot remove
        # its own. The job's next run removes them, a minute later, so they do
        # not count here.
        if not self.opening:
            self.leftovers += [f"rendezvous file {name}" for name in
                               set(os.listdir(self._folder)) - self._files]


def summarise(trials: list[Trial]) -> report.Row:
    verdicts = collections.Counter(trial.verdict for trial in trials)
    phases = collections.Counter(trial.phase for trial in trials)
    row: report.Row = {
        "benchmark": "faults", "faults": len(trials),
        "leftovers": sum(bool(trial.leftovers) for trial in trials),
        "verdicts": {name: verdicts[name] for name in VERDICTS},
        "phases": {name: phases[i] for i, name in enumerate(PHASES)}}
    for kind in KINDS:
        seconds = [one for trial in trials if trial.kind == kind
                   for one in trial.detection_seconds]
        row[kind] = {"survivors": len(seconds),
                     "median_seconds": report.median(seconds or [0]),
                     "max_seconds": max(seconds, default=0)}
    return row


def run_campaign(count: int, ranks: int, fabrics: list[str], seed: int,
                 heartbeat_seconds: float, verbose: bool) -> list[Trial]:
    """Runs the trials one after the other, since they measure time."""
    trials = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            fault = draw(seed, i, ranks, fabrics[i % len(fabrics)],
                         heartbeat_seconds)
            trial = Trial(fault, ranks, folder)
            trials.append(trial)
            if verbose or not trial.good:
                print(f"#{i} {fault}: hit in {PHASES[trial.phase]} of step "
                      f"{trial.step}: {trial.verdict}; {trial.what}",
                      *trial.leftovers, sep="\n  left behind: ", flush=True)
            elif i % 10 == 9:
                print(f"{i + 1} faults so far", flush=True)
    return trials


@report.program
def main() -> None:
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--count", type=report.at_least(1), default=300, help="faults")
    add("--ranks", type=report.at_least(2), default=3)
    add("--fabric", type=report.some_of(("tcp", "shm", "mixed")), default="all")
    add("--seed", type=int, default=1)
    add("--verbose", action="store_true", help="a line per fault")
    args = parser.parse_args()
    trials = run_campaign(args.count, args.ranks, args.fabric, args.seed, 1.5,
                          args.verbose)
    row = summarise(trials)
    counts = ", ".join(f"{count} {name}" for name, count in
                       row["verdicts"].items())
    print(f"{row['faults']} faults: {counts}, {row['leftovers']} leftovers")
    print(report.table([{"kind": kind, **row[kind]} for kind in KINDS], {
        "kind": "{kind}", "median s": "{median_seconds:.3f}",
        "most s": "{max_seconds:.3f}", "survivors": "{survivors}"}))
    report.append_json(args.json, [row])
    sys.exit(not all(trial.good for trial in trials))


if __name__ == "__main__":
    main()
