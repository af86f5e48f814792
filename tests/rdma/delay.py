#!/usr/bin/python3
"""Times an allreduce of 4 KiB over RDMA, by gdraa and by a ring, for lines that
delay packets: the fastest of some calls, since a busy machine only adds to what
packets take.

  delay.py DEVICES    what their names begin with: rxe for rxe0, rxe1...
"""

import array
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, "benchmarks")
from lib.library import Communicator  # noqa: E402

ROUNDS = 5


def milliseconds(devices, ranks, algorithm):
    def opened(rank):
        return Communicator({
            "rank": str(rank), "size": str(ranks), "algorithm": algorithm,
            "rendezvous": f"file://{folder}", "fabric": "rdma",
            "socket_ifname": "lo", "rdma_devices": f"={devices}{rank}:1"})

    times = []
    with tempfile.TemporaryDirectory() as folder, \
            ThreadPoolExecutor(ranks) as threads:
        comms = list(threads.map(opened, range(ranks)))
        data = [array.array("f", bytes(4096)) for _ in comms]
        for _ in range(1 + ROUNDS):
            begin = time.perf_counter()
            list(threads.map(Communicator.sum, comms, data))
            times.append(1e3 * (time.perf_counter() - begin))
        list(threads.map(Communicator.close, comms))
    return min(times[1:])


def main():
    for ranks in (2, 4):
        gdraa, ring = (milliseconds(sys.argv[1], ranks, algorithm)
                       for algorithm in ("gdraa", "ring"))
        print(f"allreduce of 4 KiB, {ranks} ranks: gdraa {gdraa:.1f} ms, "
              f"ring {ring:.1f} ms, ratio {ring / gdraa:.2f}")


if __name__ == "__main__":
    main()
