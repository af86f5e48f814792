"""16 bits round and overflow alike over every fabric."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from harness import Ranks, launch

# Elements that fit float16, that are rounded there, or that are too large.
VALUES = [1.0, 1.0 + 2**-12, 1e5, 3.1415926, -7e4, 65504.0, 2**-26]


def _gradients(ranks: Ranks, way: str, compression: str) -> list[float]:
    weight = torch.nn.Linear(len(VALUES), 1, bias=False)
    if way == "hook":
        model = DistributedDataParallel(weight)
        gft.register(model, compression)
    else:
        model = gft.DataParallel(weight, compression=compression)
    inputs = torch.tensor([VALUES]) * (1 if ranks.rank == 0 else 0.5)
    model(inputs).sum().backward()
    return weight.weight.grad.flatten().tolist()


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
@pytest.mark.parametrize("way", ["hook", "DataParallel"])
@pytest.mark.parametrize("size", [2, 3])
def test_the_fabric_does_not_change_the_gradients(
    size: int, way: str, compression: str
) -> None:
    by_fabric = []
    for fabric in ("shm", "tcp"):
        env = {"GRADIENTFLOW_FABRIC": fabric, "GRADIENTFLOW_ALGORITHM": "auto"}
        every = launch(_gradients, size, way, compression, env=env)
        assert all(each == every[0] for each in every), every
        by_fabric.append(every[0])
    dtype = torch.float16 if compression == "fp16" else torch.bfloat16
    share = 1 + 0.5 * (size - 1)
    exact = torch.tensor(VALUES, dtype=torch.float64) * share / size
    for got in by_fabric:
        for value, mine, mean in zip(VALUES, got, exact.tolist()):
            if torch.tensor(value).to(dtype).isinf():
                assert mine == (float("inf") if value > 0 else float("-inf")), by_fabric
            else:
                allowed = 4 * torch.finfo(dtype).eps * abs(mean) + 2**-24
                assert abs(mine - mean) <= allowed, (value, mine, mean)
                rounded = torch.tensor(mine).to(dtype).float().item()
                assert size != 2 or rounded == mine, "the result is rounded"
    if size == 2:
        assert by_fabric[0] == by_fabric[1]
