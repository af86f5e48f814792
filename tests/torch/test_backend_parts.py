"""Lists whose parts differ in size, and sums of premultiplied tensors."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist

from harness import Ranks, launch

DTYPES = [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool]
# Part r has r times the first number, plus the second, elements.
PARTS = [(1, 0), (3, 1), (1009, 5), (40_000, 0), (0, 4)]
Op = dist.ReduceOp


def _values(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Small integers: sums are exact in all types."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (count,), generator=random).to(dtype)


def _cases(size: int) -> itertools.product:
    sizes = [[times * r + plus for r in range(size)] for times, plus in PARTS]
    return itertools.product(DTYPES, [*sizes, [7] * (size - 1) + [0]])


def _all_gather(ranks: Ranks) -> None:
    me = ranks.rank
    for dtype, counts in _cases(ranks.size):
        inputs = [_values(dtype, count, r) for r, count in enumerate(counts)]
        mine = inputs[me].clone()
        outputs = [torch.zeros_like(part) for part in inputs]
        dist.all_gather(outputs, mine)
        assert all(map(torch.equal, outputs, inputs)), (dtype, counts)
        assert torch.equal(mine, inputs[me])
        # Outputs with strides, of which the rank's own is also the input.
        outputs = [torch.zeros(2 * n, dtype=dtype)[::2] for n in counts]
        outputs[me].copy_(inputs[me])
        dist.all_gather(outputs, outputs[me])
        assert all(map(torch.equal, outputs, inputs)), (dtype, counts)
        lists = [[torch.zeros_like(part), torch.zeros(2, dtype=dtype)] for part in inputs]
        dist.all_gather_coalesced(lists, [mine, _values(dtype, 2, 50 + me)])
        for r, (part, pair) in enumerate(lists):
            assert torch.equal(part, inputs[r])
            assert torch.equal(pair, _values(dtype, 2, 50 + r))


def _reduce_scatter(ranks: Ranks) -> None:
    me = ranks.rank
    gloo = dist.new_group(backend="gloo")
    for dtype, counts in _cases(ranks.size):
        every = [
            [_values(dtype, count, 10 * r + part) for part, count in enumerate(counts)]
            for r in range(ranks.size)
        ]
        for op in [Op.SUM, Op.MAX, Op.PRODUCT]:
            ours = torch.zeros(counts[me], dtype=dtype)
            theirs = torch.zeros(counts[me], dtype=dtype)
            mine = [part.clone() for part in every[me]]
            dist.reduce_scatter(ours, mine, op)
            assert all(map(torch.equal, mine, every[me])), "inputs are read only"
            if dtype == torch.bool:
                continue  # Gloo does not have it.
            dist.reduce_scatter(theirs, mine, op, group=gloo)
            assert torch.equal(ours, theirs), (dtype, counts, op)
        if dtype == torch.float64:
            dist.reduce_scatter(ours, every[me], Op.AVG)
            exact = torch.stack([rank[me] for rank in every]).mean(0)
            torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("fabric", ["shm", "tcp"])
def test_parts_of_different_sizes(size: int, fabric: str) -> None:
    env = {"GRADIENTFLOW_FABRIC": fabric}
    launch(_all_gather, size, env=env)
    launch(_reduce_scatter, size, env=env)


def _other_part(ranks: Ranks) -> None:
    outputs = [torch.zeros(3), torch.zeros(4)]
    with pytest.raises(ValueError, match=rf"tensor {ranks.rank} .*expected \[9\]"):
        dist.all_gather(outputs, torch.ones(9))
    with pytest.raises(ValueError, match=rf"tensor {ranks.rank} .*expected \[9\]"):
        dist.reduce_scatter(torch.ones(9), outputs)


def test_ones_own_part_must_fit() -> None:
    launch(_other_part, 2)


# -- PREMUL_SUM ------------------------------------------------------------


def _premul(ranks: Ranks, as_tensor: bool) -> None:
    me, size = ranks.rank, ranks.size
    factors = [0.5 * r - 0.75 for r in range(size)]
    for dtype, count in itertools.product(
        [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64],
        [0, 1, 13, 4099],
    ):
        random = torch.Generator().manual_seed(count)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        inputs = torch.rand((size, size, count), generator=random, dtype=wide)
        inputs = inputs.to(dtype)
        exact = sum(inputs[r].to(wide) * factors[r] for r in range(size))
        factor = factors[me]
        if as_tensor:
            op = dist._make_nccl_premul_sum(torch.tensor([factor], dtype=torch.float64))
        else:
            op = dist._make_nccl_premul_sum(factor)
        mine = inputs[me].clone()
        tolerance = 4 * size * torch.finfo(dtype).eps

        def check(ours: torch.Tensor, expected: torch.Tensor) -> None:
            assert torch.allclose(ours.to(wide), expected, tolerance, tolerance), dtype

        whole = mine.clone()
        dist.all_reduce(whole, op)
        check(whole, exact)
        whole = mine.clone()
        dist.reduce(whole, size - 1, op)
        if me == size - 1:
            check(whole, exact)
        part = torch.empty(count, dtype=dtype)
        dist.reduce_scatter_tensor(part, mine.flatten(), op)
        check(part, exact[me])
        part = torch.empty(count, dtype=dtype)
        dist.reduce_scatter(part, list(mine), op)
        check(part, exact[me])
        lists = [row[: count - i if i < count else 0] for i, row in enumerate(mine)]
        part = torch.empty_like(lists[me])
        dist.reduce_scatter(part, lists, op)
        check(part, exact[me][: part.numel()])
        assert torch.equal(mine, inputs[me]), "inputs are read only"


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("size", [1, 3])
def test_premultiplied_sums(size: int, as_tensor: bool) -> None:
    launch(_premul, size, as_tensor)


def _premul_and_autograd(ranks: Ranks) -> None:
    tensor = torch.ones(5, requires_grad=True)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.25))
    assert tensor.eq(0.5).all() and tensor.grad_fn is None


def test_premultiplied_parameters() -> None:
    launch(_premul_and_autograd, 2)
