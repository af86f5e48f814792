"""One rank of a small training job whose every result is known; trial.py kills
and stops such ranks.

  rank.py JOB    "board", a descriptor of memory for a RankReport per rank, and
                 "settings" of the library, in JSON

The rank writes to its report where it is and how it ended.
"""

from __future__ import annotations

import array
import ctypes
import json
import mmap
import os
import sys
import time

STEPS = 6
TENSORS = (200000, 7, 50001, 1, 120000)  # Elements.
# Of a rank, in order. While opening it meets the others, connects and measures;
# in backward some buckets are in flight already.
PHASES = ("starting", "opening", "backward", "finishing", "optimizer",
          "between steps", "closing", "closed")
OPENING, BACKWARD, FINISHING, OPTIMIZER, BETWEEN, CLOSING, CLOSED = range(1, 8)
SETTINGS = {"socket_ifname": "lo", "arena_bytes": "1GB", "wire_dtype": "float32",
            "reduce": "sum", "timeout_seconds": "60", "log_level": "error"}


class RankReport(ctypes.Structure):
    """What a rank reports to the process that watches it, in memory that both
    share, so that it survives the rank. tests/faults/board.h has the same."""

    _fields_ = [("phase", ctypes.c_int32), ("step", ctypes.c_uint64),
                # In backward of `step`. It grows before a tensor is handed in,
                # so no more than these can have been sent.
                ("handed_in", ctypes.c_uint64),
                ("wrong_sums", ctypes.c_uint64),  # Elements.
                ("ended_ns", ctypes.c_int64),  # Monotonic; 0: not yet.
                ("code", ctypes.c_int32), ("utf8", ctypes.c_char * 4096),
                ("padding", ctypes.c_char * 20)]

    @property
    def text(self) -> str:
        return self.utf8.decode(errors="replace")

    def done_its_part(self) -> bool:
        """Whether the rank had handed in everything that the job needs of it:
        the library sends that without further calls of the rank. Then others
        may succeed; their sums, which are checked, show that it was sent."""
        if self.phase >= CLOSING:
            return True
        if self.phase < BACKWARD or self.step + 1 < STEPS:
            return False
        return self.phase > BACKWARD or self.handed_in == len(TENSORS)


def values(ranks: list[int], step: int, elements: int) -> bytes:
    """The sum of the ranks' gradients: small integers, so that sums are exact in
    every order and in float16."""
    period = [sum((31 * i + 17 * step + 7 * rank) % 64 for rank in ranks)
              for i in range(64)]
    return (array.array("f", period) * (elements // 64 + 1))[:elements].tobytes()


def count_wrong(seen: memoryview, expected: bytes) -> int:
    if seen == expected:
        return 0
    return sum(a != b for a, b in zip(seen.cast("f"),
                                      memoryview(expected).cast("f")))


def train(comm: Communicator, session: Session, report: RankReport) -> None:
    everyone = list(range(comm.size))
    for step in range(STEPS):
        report.handed_in, report.step, report.phase = 0, step, BACKWARD
        for i in reversed(range(len(TENSORS))):
            session.gradients[i][:] = values([comm.rank], step, TENSORS[i])
            report.handed_in += 1
            session.ready(i)
        report.phase = FINISHING
        session.finish_step()
        for gradient, count in zip(session.gradients, TENSORS):
            report.wrong_sums += count_wrong(gradient,
                                             values(everyone, step, count))
        report.phase = OPTIMIZER
        session.optimizer_step(0.1, 0.9)
        report.phase = BETWEEN
        time.sleep(1e-3)
    report.phase = CLOSING


def main(board: int, settings: dict[str, str]) -> None:
    rank = int(os.environ["GRADIENTFLOW_RANK"])
    report = RankReport.from_buffer(mmap.mmap(board, 0),
                                    rank * ctypes.sizeof(RankReport))
    weights = [array.array("f", bytes(4 * count)) for count in TENSORS]
    comm = session = None
    try:
        report.phase = OPENING
        comm = Communicator({**SETTINGS, **settings})
        session = Session(comm, weights)
        train(comm, session, report)
    except LibraryError as error:
        # The time of an error counts from here, not from the end of closing.
        report.utf8, report.code = str(error).encode()[:4095], error.code
        report.ended_ns = time.monotonic_ns()
    for opened in filter(None, (session, comm)):
        opened.close()
    if not report.code:
        report.phase, report.ended_ns = CLOSED, time.monotonic_ns()


if __name__ == "__main__":  # trial.py needs no library.
    from lib.library import Communicator, LibraryError, Session
    main(**json.loads(sys.argv[1]))
