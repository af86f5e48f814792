"""The RDMA cards of a job's ranks, which may fail: those of tests/rdma/lines.sh."""

from __future__ import annotations

import json
import pathlib
import socket
import subprocess
import time
from collections.abc import Sequence

_LINES = pathlib.Path(__file__).resolve().parents[2] / "tests/rdma/lines.sh"
_CLASS = pathlib.Path("/sys/class/infiniband")
# How long the kernel may take to free what a process had that has ended.
_RELEASE_SECONDS = 2.0


class Cards:
    """A place for `ranks` processes, as lib.network's Network, in which rank R
    has the card rxe<R>. A context manager; at its end all cards work again.

    One process at a time may use the cards so, since it counts what is left of
    them. Raises OSError if there are too few cards.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.address, self.interface = "127.0.0.1", "lo"
        for rank in range(ranks):
            if not (_CLASS / f"rxe{rank}").exists():
                raise OSError(f"there is no RDMA device rxe{rank}: "
                              "tests/rdma/faults makes them")
        with socket.socket() as probe:  # Any port that is free at this moment.
            probe.bind((self.address, 0))
            self.port = probe.getsockname()[1]
        self._spoiled: list[tuple[str, int]] = []
        self._held, self._not_ready = self._resources(), self._not_ready_count()

    def __enter__(self) -> Cards:
        return self

    def __exit__(self, *_: object) -> None:
        while self._spoiled:
            what, rank = self._spoiled.pop()
            _lines("mend_card", what, rank)

    def environment(self, rank: int) -> dict[str, str]:
        """As Network's; programs of one benchmark get settings() besides."""
        return {"GRADIENTFLOW_SOCKET_IFNAME": self.interface}

    def settings(self, rank: int) -> dict[str, str]:
        return {"rdma_devices": f"=rxe{rank}:1"}

    def on_host(self, rank: int, command: Sequence[str]) -> list[str]:
        """As Network's: all ranks are where this process is."""
        return list(command)

    def spoil(self, what: str, rank: int) -> None:
        """Takes from the rank's card its "port" or its "address"."""
        self._spoiled.append((what, rank))
        _lines("spoil_card", what, rank)

    def complaints(self) -> list[str]:
        """What processes that have ended left on the cards, and whether a
        message found its receiver not ready, which credits rule out."""
        give_up = time.monotonic() + _RELEASE_SECONDS
        while True:
            left = [f"{count - self._held[card][what]} {what} of {card}"
                    for card, counts in self._resources().items()
                    for what, count in counts.items()
                    if count > self._held[card][what]]
            if not left or time.monotonic() > give_up:
                break
            time.sleep(0.05)
        if self._not_ready_count() > self._not_ready:
            left.append("receivers that were not ready")
        return left

    def _resources(self) -> dict[str, dict[str, int]]:
        """How many queue pairs, regions and so on each card has."""
        said = subprocess.run(["rdma", "-j", "resource", "show"], check=True,
                              capture_output=True, text=True).stdout
        return {card["ifname"]: {what: card[what] for what in
                                 ("pd", "cq", "qp", "mr", "ctx")}
                for card in json.loads(said)}

    def _not_ready_count(self) -> int:
        return sum(int((_CLASS / f"rxe{rank}/ports/1/hw_counters/rcvd_rnr_err")
                       .read_text()) for rank in range(self.ranks))


def _lines(function: str, what: str, rank: int) -> None:
    done = subprocess.run(
        ["bash", "-c", 'source "$0" && "$@"', str(_LINES), function, what,
         str(rank)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{function} {what} {rank} failed: "
                      f"{done.stderr.strip() or 'it does not come back'}")
