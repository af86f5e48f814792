"""One rank of Gloo's allreduce for the benchmark `allreduce`, which tells it
what to do over a socket; the protocol is that of batch.h.

  gloo_peer.py SOCKET STORE RANK RANKS MOST_BYTES
"""

import datetime
import socket
import sys
import time

import torch
import torch.distributed as dist


def value(rank, count):
    i = torch.arange(count, dtype=torch.int64)
    return ((i * i + 13 * rank) % 11 - 5).to(torch.float32)


def check(data, rank, ranks):
    data.copy_(value(rank, data.numel()))
    dist.all_reduce(data)
    expected = sum(value(r, data.numel()) for r in range(ranks))
    wrong = int((data != expected).sum())
    data.zero_()
    return wrong


def timed(data, warmup, iterations):
    for _ in range(warmup):
        dist.all_reduce(data)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(data)
    return (time.perf_counter() - begin) / iterations


def answer(line, buffer, rank, ranks):
    words = line.split()
    if words[1:4] != ["float32", "float32", "sum"]:
        return "error only sums of float32 are compared"
    data = buffer[:int(words[0]) // 4]
    warmup, iterations, checked = (int(word) for word in words[6:9])
    if checked:
        return f"ok 0 {check(data, rank, ranks)}"
    return f"ok {timed(data, warmup, iterations):.9g} 0"


def main():
    path, store = sys.argv[1:3]
    rank, ranks, most_bytes = (int(word) for word in sys.argv[3:6])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                            world_size=ranks,
                            timeout=datetime.timedelta(seconds=120))
    buffer = torch.zeros(max(most_bytes // 4, 1))
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.connect(path)
    control.sendall(b"ok 0 0\n")
    for line in control.makefile():
        reply = answer(line, buffer, rank, ranks)
        control.sendall(reply.encode() + b"\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
