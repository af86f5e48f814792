"""One rank of Gloo's allreduce for collectives.py, with the protocol of worker.h.

  gloo_peer.py STORE RANK RANKS MOST_BYTES
"""

import datetime
import sys
import time

import torch
import torch.distributed as dist
from lib.sums import count_wrong


def timed(data, warmup, iterations):
    for _ in range(warmup):
        dist.all_reduce(data)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(data)
    return (time.perf_counter() - begin) / iterations


def main():
    store = sys.argv[1]
    rank, ranks, most_bytes = (int(word) for word in sys.argv[2:5])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                            world_size=ranks,
                            timeout=datetime.timedelta(seconds=120))
    buffer = torch.zeros(max(most_bytes // 4, 1))
    print("ready", flush=True)
    for line in sys.stdin:
        size, warmup, iterations, checked = map(int, line.split()[:4])
        data = buffer[:size // 4]
        if checked:
            print(f"ok 0 {count_wrong(data)}", flush=True)
        else:
            print(f"ok {timed(data, warmup, iterations):.9g} 0", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
