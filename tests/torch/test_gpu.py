"""What only a GPU shows: streams, captured graphs, memory, NCCL.

Ranks share the GPUs there are, so only jobs of one rank use NCCL.
`tests/torch/run --device cuda` runs these, and the other files on GPUs, too.
"""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from harness import DEVICE, Ranks, launch
from parallel_models import batch, loss_of, net, train_steps

pytestmark = pytest.mark.skipif(
    DEVICE != "cuda", reason="needs a GPU: tests/torch/run --device cuda"
)
SLEEP_CYCLES = 20_000_000  # About 10 ms.
NCCL = {"device_collectives": "nccl"}
STAGED = {"device_collectives": "staged"}


def orders_streams(ranks: Ranks, count: int) -> None:
    """Values that a slow stream writes are those that are sent, and whoever
    waits for the operation on a stream sees its result there."""
    side = torch.cuda.Stream()
    tensor = torch.zeros(count)
    for step in range(8):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP_CYCLES)
            tensor.fill_(10.0 * step + ranks.rank)
            work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        copy = tensor.clone()
        # The next step writes the tensor again, after this copy.
        expected = 10.0 * step * ranks.size + sum(range(ranks.size))
        assert copy.eq(expected).all(), f"step {step}: {copy[:3]}"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives_are_ordered_by_streams(size: int) -> None:
    for count in (1, 1009, 1 << 20):
        launch(orders_streams, size, count)


def train(
    ranks: Ranks, kind: str, compression: str | None, options: dict[str, str]
) -> tuple[list[bytes], float]:
    model: torch.nn.Module
    csc = {"sparsity": 0.0, "chunk_elements": 17} if compression == "csc" else {}
    if kind == "DataParallel":
        model = gft.DataParallel(net(), compression=compression, options=options, **csc)
        optimizer: torch.optim.Optimizer = gft.SGD(model, 0.05, momentum=0.9)
    else:
        model = DistributedDataParallel(net(), device_ids=[torch.cuda.current_device()])
        gft.register(model, compression or "fp16", **csc)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    return train_steps(ranks, model, optimizer, steps=10)


@pytest.mark.parametrize("compression", [None, "fp16", "bf16", "csc"])
@pytest.mark.parametrize(
    ("size", "options"), [(1, NCCL), (1, STAGED), (2, STAGED), (3, {}), (4, STAGED)]
)
def test_data_parallel_trains_as_one_process_does(
    size: int, options: dict[str, str], compression: str | None
) -> None:
    results = launch(train, size, "DataParallel", compression, options)
    assert all(bits == results[0][0] for bits, _ in results)
    allowed = {None: 1e-5, "fp16": 2e-3, "bf16": 2e-2, "csc": 2e-3}[compression]
    assert all(apart < allowed for _, apart in results), results


@pytest.mark.parametrize("compression", ["fp16", "bf16", "csc"])
@pytest.mark.parametrize(
    ("size", "backend"), [(1, "nccl"), (1, "gradientflow"), (3, "gradientflow")]
)
def test_hooks_train_as_one_process_does(
    size: int, backend: str, compression: str
) -> None:
    results = launch(train, size, "hook", compression, {}, backend=backend)
    assert all(bits == results[0][0] for bits, _ in results)
    allowed = {"fp16": 2e-3, "bf16": 2e-2, "csc": 2e-3}[compression]
    assert all(apart < allowed for _, apart in results), results


class Slow(torch.autograd.Function):
    """The GPU takes its time in backward; the host goes on."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        torch.cuda._sleep(100 * SLEEP_CYCLES)
        return grad


def backward_returns_early(ranks: Ranks, compression: str | None) -> list[bool]:
    csc = {"sparsity": 0.5, "chunk_elements": 17} if compression == "csc" else {}
    model = gft.DataParallel(
        net(),
        compression=compression,
        options=NCCL,
        # What a parameter's .grad is after CSC may need a look at the GPU.
        find_unused_parameters=False,
        **csc,
    )
    optimizer = gft.SGD(model, 0.05, momentum=0.9)
    early = []
    for step in range(4):
        inputs, targets = batch(step, ranks.rank)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(Slow.apply(model(inputs)), targets)
        loss.backward()
        over = torch.cuda.Event()
        over.record()
        optimizer.step()
        early.append(not over.query())
        torch.cuda.synchronize()
    assert model.stats["step"] >= 2
    return early


@pytest.mark.parametrize("compression", [None, "fp16", "csc"])
def test_backward_does_not_wait_for_the_gpu(compression: str | None) -> None:
    (early,) = launch(backward_returns_early, 1, compression)
    # The first steps allocate, and measure.
    assert all(early[1:]), early


def refuses_capture(ranks: Ranks) -> None:
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises((RuntimeError, ValueError)) as refused:
        with torch.cuda.graph(graph):
            dist.all_reduce(tensor)
    assert "captur" in str(refused.value).lower(), str(refused.value)
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    assert tensor.eq(ranks.size).all()


def test_a_capture_is_refused_and_nothing_else() -> None:
    launch(refuses_capture, 2)


def memory_stays(ranks: Ranks, compression: str) -> None:
    device = torch.cuda.current_device()
    used = []
    for _ in range(4):
        model = gft.DataParallel(net(), compression=compression)
        optimizer = gft.SGD(model, 0.05, momentum=0.9)
        for step in range(20):
            optimizer.zero_grad()
            loss_of(model, step, ranks.rank).backward()
            optimizer.step()
        model.close()
        del model, optimizer
        gc.collect()
        torch.cuda.synchronize()
        dist.barrier()
        used.append(torch.cuda.memory_allocated(device))
    assert used[1:] == [used[1]] * 3, used


@pytest.mark.parametrize("compression", ["fp16", "csc"])
def test_memory_of_the_gpu_is_given_back(compression: str) -> None:
    launch(memory_stays, 2, compression)
