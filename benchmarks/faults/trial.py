"""A fault: a small training job in processes of its own, what happens to one of its
ranks, and whether the ranks end as they should."""

import ctypes
import json
import mmap
import os
import pathlib
import random
import re
import signal
import subprocess
import time
from dataclasses import dataclass

from board import CLOSING, OPENING, PHASES, STEPS, RankReport
from cards import Cards
from lib import report
from lib.network import Network
from lib.ranks import program, start_program

MARGIN_SECONDS = 1.0
# In a file rendezvous other ranks have this long to read its verdict.
JOIN_GRACE_SECONDS = 5.0
RETRY_SECONDS = 1.0  # How long a card sends again what nobody acknowledges.
# A rank whose own card fails has told the others by then, but may still have to
# wait until the kernel has destroyed its queue pairs. 3.1 s have been seen.
DESTROY_SECONDS = 5.0
LEAVE_SECONDS = 2.0  # How long an orderly end waits for good-byes.

UNAVAILABLE, ABORTED, DEADLINE_EXCEEDED = 3, 4, 5  # status.h's codes.

# From best to worst; the first three are acceptable.
VERDICTS = ("clean error", "finished", "indirect error", "slow",
            "unclear error", "wrong culprit", "wrong sum", "hang", "unexpected")
GOOD = VERDICTS[:3]
KINDS = ("death", "stop", "card", "opening")

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
CARD_FAULTS = (*SIGNALS, "port", "address")


@dataclass(frozen=True)
class Pace:
    """How fast ranks are, and so when to strike and how long to wait; all in
    seconds."""

    opening: float = 0.04  # As long as opening takes,
    phase: float = 0.0025  # and a phase of a step.
    look: float = 50e-6  # How often the victim is looked at.
    join: float = 2.0  # The join time-out.
    hang: float = 12.0  # After that a survivor counts as hanging.


# Cards are those of a virtual machine without KVM.
PACES = {"rdma": Pace(opening=1.0, phase=0.05, look=1e-3, join=4.0, hang=25.0)}


@dataclass
class Fault:
    """What happens to one rank, and when; `delay` counts from the moment at
    which the rank reaches `phase`."""

    fabric: str
    settings: dict[str, str]
    victim: int
    what: str  # One of CARD_FAULTS: a signal, or what its card loses.
    phase: int
    step: int
    delay: float

    @property
    def pace(self) -> Pace:
        return PACES.get(self.fabric, Pace())

    @property
    def telling_seconds(self) -> float:
        """How long it may take until anything tells of the fault."""
        if self.what == "stop":
            return float(self.settings["heartbeat_timeout_seconds"])
        return 0 if self.what == "kill" else RETRY_SECONDS

    def __str__(self) -> str:
        return (f"{self.fabric}, {self.what} of rank {self.victim} in "
                f"{PHASES[self.phase]} of step {self.step} + "
                f"{1e3 * self.delay:.3f} ms, {self.settings}")


def draw(seed: int, index: int, ranks: int, fabric: str,
         heartbeat_seconds: float) -> Fault:
    """Returns the `index`-th random fault; it depends on the arguments only."""
    dice = random.Random(f"{seed} {index}")
    pace = PACES.get(fabric, Pace())
    phase = dice.choice((1, 1, 2, 2, 3, 3, 4, 5, 6))
    fault = Fault(
        fabric=fabric, victim=dice.randrange(ranks),
        what="stop" if dice.random() < 0.5 else "kill",
        phase=phase, step=dice.randrange(STEPS),
        delay=dice.uniform(0, pace.opening if phase == OPENING else pace.phase),
        settings={
            "bucket_bytes": dice.choice(("0", "64KB", "inf", "auto")),
            "wire_dtype": dice.choice(("float32", "float16")),
            "rendezvous": dice.choice(("file", "tcp")),
            "heartbeat_timeout_seconds": str(heartbeat_seconds),
            "join_timeout_seconds": str(pace.join)})
    if fabric == "rdma":  # Few faults are of all sorts, too.
        fault.what = CARD_FAULTS[index % len(CARD_FAULTS)]
        fault.settings |= {"algorithm": dice.choice(("auto", "gdraa")),
                           "rdma_retry_seconds": str(RETRY_SECONDS)}
    return fault


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
        os.truncate(descriptor, ranks * ctypes.sizeof(RankReport))
        self._board = mmap.mmap(descriptor, ranks * ctypes.sizeof(RankReport))
        # A rank whose card fails lives, and has to end like the others.
        self._survivors = [rank for rank in range(ranks) if
                           rank != fault.victim or fault.what not in SIGNALS]
        self._cards = Cards(ranks) if fault.fabric == "rdma" else None
        with self._cards or Network(ranks) as network:
            self._start(network, descriptor)
            os.close(descriptor)
            self._strike()
            self._await_survivors()
            for rank in self._survivors:
                self._judge(rank)
            if fault.what in SIGNALS:
                self._judge_victim()
            self._find_leftovers()
            for process in self._processes:
                process.kill()
                process.wait()

    def __getitem__(self, rank: int) -> RankReport:
        return RankReport.from_buffer_copy(self._board,
                                           rank * ctypes.sizeof(RankReport))

    @property
    def good(self) -> bool:
        return self.verdict in GOOD and not self.leftovers

    @property
    def opening(self) -> bool:
        return self.phase <= OPENING

    @property
    def kind(self) -> str:
        if self.opening:
            return "opening"
        return {"kill": "death", "stop": "stop"}.get(self.fault.what, "card")

    def record(self) -> report.Row:
        """What a summary takes of it."""
        return {"verdict": self.verdict, "kind": self.kind,
                "phase": PHASES[self.phase], "leftovers": self.leftovers,
                "seconds": [round(one, 3) for one in self.detection_seconds]}

    def _start(self, network: Network | Cards, descriptor: int) -> None:
        settings = dict(self.fault.settings)
        settings["rendezvous"] = (f"{network.address}:{network.port}"
                                  if settings["rendezvous"] == "tcp" else
                                  f"file://{self._folder}")
        self._processes: list[subprocess.Popen[str]] = []
        for rank in range(network.ranks):
            own = self._cards.settings(rank) if self._cards else {}
            if self.fault.fabric != "mixed":
                own["fabric"] = self.fault.fabric
            else:  # The last rank lives on a host of its own.
                own["host_id"] = f"host{rank == network.ranks - 1}"
            job = json.dumps({"board": descriptor, "settings": settings | own})
            group = self._processes[0].pid if self._processes else 0
            self._processes.append(start_program(
                network, rank, [program("../tests/faults/rank"), job], {},
                pass_fds=[descriptor], process_group=group,
                stdout=subprocess.DEVNULL))

    def _there(self, victim: RankReport) -> bool:
        fault = self.fault
        if fault.phase <= OPENING:
            return victim.phase >= fault.phase
        if victim.phase >= CLOSING:
            return True
        return (OPENING < victim.phase and fault.phase < CLOSING and
                (victim.step, victim.phase) >= (fault.step, fault.phase))

    def _strike(self) -> None:
        give_up = time.monotonic() + self.fault.pace.hang
        victim = self[self.fault.victim]
        while (not self._there(victim) and time.monotonic() < give_up and
               not victim.ended_ns):
            time.sleep(self.fault.pace.look)
            victim = self[self.fault.victim]
        time.sleep(self.fault.delay)
        self._struck_ns = time.monotonic_ns()
        if self.fault.what in SIGNALS:
            self._processes[self.fault.victim].send_signal(
                SIGNALS[self.fault.what])
        elif self._cards:
            self._cards.spoil(self.fault.what, self.fault.victim)

    def _ends(self, rank: int, seconds: float) -> bool:
        try:
            self._processes[rank].wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _await_survivors(self) -> None:
        give_up = self._struck_ns * 1e-9 + self.fault.pace.hang
        for rank in self._survivors:
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
            self._note(self._judge_error(rank, seconds),
                       f"{who}code {seen.code} after {seconds:.3f} s: "
                       f"{seen.text}")

    def _limit_seconds(self, rank: int) -> float:
        telling = self.fault.telling_seconds
        if rank == self.fault.victim:
            telling += DESTROY_SECONDS
        if self.opening:
            return (max(self.fault.pace.join, telling) + MARGIN_SECONDS +
                    JOIN_GRACE_SECONDS)
        return MARGIN_SECONDS + telling

    def _names(self, text: str, rank: int) -> bool:
        # A rank that has not come yet has no address.
        return f"rank {rank} (" in text or (self.opening and bool(re.search(
            rf"rank(s|\(s\))? ([0-9]+, )*{rank}\b", text)))

    def _judge_error(self, rank: int, seconds: float) -> str:
        seen = self[rank]
        if (seen.code not in (UNAVAILABLE, ABORTED, DEADLINE_EXCEEDED) or
                not (self.opening or f"step {seen.step}" in seen.text)):
            return "unclear error"
        if seconds > self._limit_seconds(rank):
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
        stopped, pace = self.fault.what == "stop", self.fault.pace
        if stopped:
            self._processes[victim].send_signal(signal.SIGCONT)
        ended = self._ends(victim, pace.hang + pace.join * self.opening)
        seen = self[victim]
        if stopped and not ended:
            self._note("hang", f"{who}hangs in {PHASES[seen.phase]} of step "
                               f"{seen.step}")
        elif stopped and not seen.ended_ns:
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
        if self._cards and self.verdict != "hang":
            self.leftovers += self._cards.complaints()
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
