"""Groups and steps release everything that they use."""

from __future__ import annotations

import ctypes
import gc
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness import Ranks, launch

_M_MMAP_THRESHOLD = -3  # mallopt(3)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def _check_flat(warm: int, more: int, step: object, limit_bytes: int) -> int:
    """Calls step() `warm` times, then `more` times. The latter must leave
    threads and descriptors as they were, and use at most `limit_bytes`."""
    # Large blocks return to the system at once, so that resident memory is what
    # is held, without the holes between small blocks that glibc keeps.
    assert ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 16) == 1
    for _ in range(warm):
        step()
    threads, descriptors, resident = _threads(), _descriptors(), _resident_bytes()
    for _ in range(more):
        step()
    grown = _resident_bytes() - resident
    assert _threads() <= threads, (_threads(), threads)
    assert _descriptors() <= descriptors, (_descriptors(), descriptors)
    assert grown <= limit_bytes, f"{grown} bytes more after {more} rounds"
    return grown


def _groups(ranks: Ranks) -> int:
    def step() -> None:
        group = dist.new_group(list(range(ranks.size)))
        dist.all_reduce(torch.ones(1000), group=group)
        dist.all_reduce(torch.ones(10), group=group, async_op=True).get_future().wait()
        dist.destroy_process_group(group)

    # torch itself keeps some hundred bytes per group: keys in the store.
    return _check_flat(200, 800, step, 2 << 20)


def test_a_thousand_groups() -> None:
    # Torch's flight recorder would keep the last operations.
    launch(_groups, 2, store="tcp", env={"TORCH_FR_BUFFER_SIZE": "0"})


def _sessions(ranks: Ranks) -> int:
    count = 0

    def step() -> None:
        nonlocal count
        dist.init_process_group(
            "gradientflow",
            store=dist.FileStore(os.path.join(ranks.directory, f"s{count}"), ranks.size),
            rank=ranks.rank,
            world_size=ranks.size,
        )
        count += 1
        dist.all_reduce(torch.ones(100_000))
        dist.new_group([0, 1])
        dist.destroy_process_group()

    return _check_flat(10, 40, step, 2 << 20)


def test_fifty_sessions_one_after_the_other() -> None:
    launch(_sessions, 2, backend=None)


def _steps(ranks: Ranks) -> int:
    right, left = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
    tensor, whole = torch.ones(1000), torch.empty(ranks.size * 1000)
    parts = [torch.empty(1000) for _ in range(ranks.size)]
    got = torch.empty(1000)
    seen = 0

    def count(future: torch.futures.Future) -> None:
        nonlocal seen
        seen += len(future.value())

    def step() -> None:
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        work = dist.all_gather_into_tensor(whole, tensor, async_op=True)
        work.get_future().then(count)
        dist.all_gather(parts, tensor)
        dist.reduce_scatter_tensor(tensor, whole, dist.ReduceOp.MAX)
        works = [dist.isend(tensor, right), dist.irecv(got, left)]
        for work in works:
            work.wait()

    return _check_flat(1000, 9000, step, 2 << 20)


@pytest.mark.parametrize("size", [2, 3])
def test_ten_thousand_steps(size: int) -> None:
    launch(_steps, size)


def _training(ranks: Ranks) -> int:
    model = DistributedDataParallel(nn.Linear(64, 64), bucket_cap_mb=0.001)
    inputs = torch.ones(2, 64)

    def step() -> None:
        model.zero_grad()
        model(inputs).sum().backward()

    return _check_flat(100, 900, step, 2 << 20)


def test_a_thousand_steps_of_ddp() -> None:
    launch(_training, 2)
