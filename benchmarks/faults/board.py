"""What the ranks of a small training job, tests/faults/rank_main.cc, write where
trial.py sees it. tests/faults/board.h and job.h have the same."""

import ctypes

STEPS = 6
TENSORS = (200000, 7, 50001, 1, 120000)  # Elements.
# What a rank goes through, in order. While opening it meets the others, connects and
# measures; in backward some buckets are in flight already.
PHASES = ("starting", "opening", "backward", "finishing", "optimizer",
          "between steps", "closing", "closed")
OPENING, BACKWARD, FINISHING, OPTIMIZER, BETWEEN, CLOSING, CLOSED = range(1, 8)


class RankReport(ctypes.Structure):
    """What a rank reports to the process that watches it, in memory that both
    share, so that it survives the rank."""

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
