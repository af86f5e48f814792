"""Libraries that build on process groups: DDP, FSDP2, DTensor, ZeRO, Join,
objects.

Training is compared with one process that sees all samples.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from harness import Ranks, launch
from versions import since_2_15

STEPS = 5
SAMPLES = 4  # Per rank.


def _model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(11, 37), nn.Tanh(), nn.Linear(37, 37), nn.Tanh(), nn.Linear(37, 3)
    ).double()


def _samples(step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step)
    count = size * SAMPLES
    inputs = torch.randn(count, 11, generator=random, dtype=torch.float64)
    return inputs, torch.randn(count, 3, generator=random, dtype=torch.float64)


def _train(
    model: nn.Module,
    size: int,
    rank: int | None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> list[torch.Tensor]:
    """Returns the parameters after some steps; `rank` None: on all samples."""
    optimizer = optimizer(model.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, targets = _samples(step, size)
        if rank is not None:
            inputs = inputs[rank * SAMPLES :][:SAMPLES]
            targets = targets[rank * SAMPLES :][:SAMPLES]
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _check(ranks: Ranks, trained: list[torch.Tensor], expected: list) -> None:
    for ours, exact in zip(trained, expected, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-12)
        for theirs in functional.all_gather_tensor(ours, 0, dist.group.WORLD).chunk(
            ranks.size
        ):
            assert torch.equal(theirs, ours), "ranks differ"


# -- Training --------------------------------------------------------------


def _ddp(ranks: Ranks, options: dict) -> None:
    expected = _train(_model(), ranks.size, None)
    model = DistributedDataParallel(_model(), **options)
    _check(ranks, _train(model, ranks.size, ranks.rank), expected)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ddp_trains_as_one_process(size: int) -> None:
    launch(_ddp, size, {})


@pytest.mark.parametrize(
    "options",
    [
        {"bucket_cap_mb": 0.001},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_ddp_options(options: dict) -> None:
    launch(_ddp, 2, options)


def _ddp_hook(ranks: Ranks, name: str) -> None:
    model = DistributedDataParallel(_model().float())
    if name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "powerSGD":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(20):
        inputs, targets = (t.float() for t in _samples(0, ranks.size))
        mine = slice(ranks.rank * SAMPLES, (ranks.rank + 1) * SAMPLES)
        optimizer.zero_grad()
        loss = (model(inputs[mine]) - targets[mine]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    both = torch.stack(losses)
    dist.all_reduce(both, dist.ReduceOp.AVG)
    assert both[-1] < 0.8 * both[0], both
    for parameter in model.parameters():
        copies = functional.all_gather_tensor(parameter.detach(), 0, dist.group.WORLD)
        assert all(torch.equal(c, parameter) for c in copies.chunk(ranks.size))


@pytest.mark.parametrize("name", ["allreduce", "fp16", "powerSGD"])
def test_ddp_with_torchs_hooks(name: str) -> None:
    launch(_ddp_hook, 2, name)


def _ddp_sparse(ranks: Ranks) -> None:
    torch.manual_seed(3)
    table = nn.Embedding(50, 4, sparse=True)
    model = DistributedDataParallel(copy.deepcopy(table))
    index = [torch.tensor([r, 7, 7, 40 + r]) for r in range(ranks.size)]
    model(index[ranks.rank]).sum().backward()
    gradient = model.module.weight.grad
    assert gradient.is_sparse
    exact = torch.zeros(50, 4)
    for rows in index:
        exact.index_add_(0, rows, torch.ones(4, 4))
    torch.testing.assert_close(gradient.to_dense(), exact / ranks.size)


def _sparse_among_others(ranks: Ranks) -> None:
    """Ranks are ahead and behind in turn."""
    works, expected = [], []
    for step in range(40):
        rows = torch.randint(0, 30, (1, 1 + (step + ranks.rank) % 5))
        values = torch.full((rows.shape[1], 3), float(ranks.rank + 1))
        sparse = torch.sparse_coo_tensor(rows, values, (30, 3))
        summed = sparse.to_dense()
        dist.all_reduce(summed)
        dense = torch.full((7,), float(step))
        if step % ranks.size == ranks.rank:
            time.sleep(0.002)
        works.append(dist.all_reduce(sparse, async_op=True))
        works.append(dist.all_reduce(dense, async_op=True))
        expected.append((sparse, summed, dense, 7 * [float(step * ranks.size)]))
    for work in works:
        work.wait()
    for sparse, summed, dense, total in expected:
        torch.testing.assert_close(sparse.to_dense(), summed)
        assert dense.tolist() == total


def test_sparse_all_reduces_keep_their_place() -> None:
    launch(_sparse_among_others, 3)


class _Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(50, 4, sparse=True)
        self.second = nn.Embedding(50, 4, sparse=True)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.first(rows) + self.second(rows)


def _ddp_two_tables(ranks: Ranks) -> None:
    model = DistributedDataParallel(_Tables())
    for step in range(10):
        model.zero_grad()
        model(torch.tensor([ranks.rank, step, 7])).sum().backward()
        for parameter in model.parameters():
            dense = parameter.grad.to_dense()
            assert dense[7].tolist() == [1.0 + (step == 7)] * 4


def test_ddp_with_two_sparse_tables() -> None:
    launch(_ddp_two_tables, 3)


def test_ddp_with_sparse_gradients() -> None:
    launch(_ddp_sparse, 3)


def _fsdp(ranks: Ranks) -> None:
    expected = _train(_model(), ranks.size, None, torch.optim.Adam)
    mesh = init_device_mesh("cpu", (ranks.size,))
    model = _model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    trained = _train(model, ranks.size, ranks.rank, torch.optim.Adam)
    _check(ranks, [_whole(parameter) for parameter in trained], expected)


@pytest.mark.parametrize("size", [2, 3])
def test_fully_shard_trains_as_one_process(size: int) -> None:
    launch(_fsdp, size)


def _zero(ranks: Ranks) -> None:
    expected = _train(_model(), ranks.size, None, torch.optim.Adam)
    model = DistributedDataParallel(_model())

    def optimizer(parameters: object, lr: float) -> ZeroRedundancyOptimizer:
        return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=lr)

    _check(ranks, _train(model, ranks.size, ranks.rank, optimizer), expected)


@pytest.mark.parametrize("size", [2, 3])
def test_zero_redundancy_optimizer(size: int) -> None:
    launch(_zero, size)


def _join(ranks: Ranks) -> None:
    model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
    steps = 3 + 2 * ranks.rank
    with Join([model]):
        for _ in range(steps):
            model(torch.ones(2, 3)).sum().backward()
    dist.barrier()


@pytest.mark.parametrize("size", [2, 3])
def test_join_with_uneven_inputs(size: int) -> None:
    launch(_join, size)


# -- Tensors and objects ---------------------------------------------------


def _dtensor(ranks: Ranks) -> None:
    mesh = init_device_mesh("cpu", (ranks.size,))
    torch.manual_seed(1)
    left, right = torch.randn(6, 10), torch.randn(10, 7)
    rows = distribute_tensor(left, mesh, [Shard(0)])
    columns = distribute_tensor(right, mesh, [Shard(1)])
    product = (rows @ columns.redistribute(mesh, [Replicate()])).full_tensor()
    torch.testing.assert_close(product, left @ right)
    inner = distribute_tensor(left, mesh, [Shard(1)])
    outer = distribute_tensor(right, mesh, [Shard(0)])
    torch.testing.assert_close((inner @ outer).full_tensor(), left @ right)
    moved = rows.redistribute(mesh, [Shard(1)])
    torch.testing.assert_close(moved.full_tensor(), left)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_dtensor(size: int) -> None:
    launch(_dtensor, size)


def _mesh(ranks: Ranks) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    for name, members in [
        ("rows", [ranks.rank % 2, ranks.rank % 2 + 2]),
        ("columns", [ranks.rank // 2 * 2, ranks.rank // 2 * 2 + 1]),
    ]:
        tensor = torch.tensor([float(ranks.rank)])
        dist.all_reduce(tensor, group=mesh.get_group(name))
        assert tensor.item() == sum(members)


def test_mesh_of_two_dimensions() -> None:
    launch(_mesh, 4)


def _functional(ranks: Ranks) -> None:
    group = dist.group.WORLD
    size = ranks.size
    mine = torch.full((2 * size, 3), float(ranks.rank))
    total = size * (size - 1) / 2
    assert functional.all_reduce(mine, "sum", group).eq(total).all()
    gathered = functional.all_gather_tensor(mine, 0, group)
    assert [part[0, 0].item() for part in gathered.chunk(size)] == list(range(size))
    assert functional.reduce_scatter_tensor(mine, "sum", 0, group).eq(total).all()
    exchanged = functional.all_to_all_single(mine, None, None, group)
    assert [part[0, 0].item() for part in exchanged.chunk(size)] == list(range(size))
    coalesced = functional.all_reduce_coalesced([mine, mine + 1], "sum", group)
    assert coalesced[0].eq(total).all() and coalesced[1].eq(total + size).all()
    many = functional.all_gather_into_tensor_coalesced([mine, mine[:1]], group)
    assert [len(t) for t in many] == [2 * size * size, size]
    few = functional.reduce_scatter_tensor_coalesced(
        [mine, mine[:size]], "avg", [0, 0], group
    )
    assert all(t.eq((size - 1) / 2).all() for t in few)


@pytest.mark.parametrize("size", [2, 3])
def test_functional_collectives(size: int) -> None:
    launch(_functional, size)


def _objects(ranks: Ranks) -> None:
    size = ranks.size
    mine = {"rank": ranks.rank, "text": "x" * (1000 * ranks.rank)}
    everybodys: list = [None] * size
    dist.all_gather_object(everybodys, mine)
    assert [item["rank"] for item in everybodys] == list(range(size))
    gathered = [None] * size if ranks.rank == size - 1 else None
    dist.gather_object(mine, gathered, dst=size - 1)
    assert gathered is None or gathered == everybodys
    shared = ["from", ranks.rank, ("rank", 0)] if ranks.rank == 0 else [None] * 3
    dist.broadcast_object_list(shared, src=0)
    assert shared == ["from", 0, ("rank", 0)]
    out: list = [None]
    dist.scatter_object_list(
        out, [{"for": r} for r in range(size)] if ranks.rank == 0 else None, src=0
    )
    assert out == [{"for": ranks.rank}]
    if ranks.rank == 0:
        dist.send_object_list(["hello", 1], dst=size - 1)
    elif ranks.rank == size - 1:
        got: list = [None, None]
        dist.recv_object_list(got, src=0)
        assert got == ["hello", 1]


@pytest.mark.parametrize("size", [2, 3])
def test_objects(size: int) -> None:
    launch(_objects, size)


def _split(ranks: Ranks) -> None:
    evens = [r for r in range(ranks.size) if r % 2 == 0]
    odds = [r for r in range(ranks.size) if r % 2 == 1]
    group = dist.split_group(split_ranks=[evens, odds])
    members = odds if ranks.rank % 2 else evens
    tensor = torch.tensor([float(ranks.rank)])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == sum(members)
    assert dist.get_process_group_ranks(group) == members


@since_2_15
def test_split_group() -> None:
    launch(_split, 5)
