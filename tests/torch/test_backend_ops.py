"""Every collective, compared with Gloo's result on the same ranks and inputs.

Sums of floats are also compared with float64 arithmetic, since Gloo adds 16-bit
floats in 16 bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist

from harness import Ranks, launch

SIZES = [1, 2, 3, 5, 8]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
# Types that are only moved, never added up.
OTHERS = [torch.int16, torch.uint16, torch.float8_e4m3fn, torch.complex32]
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (2, 3, 5), (1021,), (64, 33)]
LARGE = (300_007,)
Op = dist.ReduceOp
BITWISE = [Op.BAND, Op.BOR, Op.BXOR]


def _values(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Returns random values, small enough that sums and products of 8 stay
    exact in integers and in range for 16 bits."""
    random = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=random) < 0.5
    if dtype.is_complex:
        parts = torch.rand((*shape, 2), generator=random, dtype=torch.float64) * 2 - 1
        return torch.view_as_complex(parts).to(dtype)
    if dtype.is_floating_point:
        wide = torch.rand(shape, generator=random, dtype=torch.float64) + 0.5
        return wide.to(dtype)
    return torch.randint(0, 4, shape, generator=random).to(dtype)


def _same(ours: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    assert ours.dtype == expected.dtype and ours.shape == expected.shape, what
    assert torch.equal(_bits(ours), _bits(expected)), (what, ours, expected)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().view(-1).view(torch.uint8)


def _close(ours: torch.Tensor, exact: torch.Tensor, what: object) -> None:
    """`exact` has 64 bits; a few roundings of ours are allowed."""
    tolerance = 4 * torch.finfo(ours.dtype).eps
    assert torch.allclose(
        ours.to(exact.dtype), exact, rtol=tolerance, atol=tolerance
    ), (what, ours, exact)


def _exact(op: Op, inputs: list[torch.Tensor]) -> torch.Tensor:
    wide = torch.complex128 if inputs[0].is_complex() else torch.float64
    stacked = torch.stack(inputs).to(wide)
    if op == Op.SUM:
        return stacked.sum(0)
    if op == Op.AVG:
        return stacked.mean(0)
    if op == Op.PRODUCT:
        return stacked.prod(0)
    return stacked.amin(0) if op == Op.MIN else stacked.amax(0)


def _float_cases() -> Iterator[tuple[torch.dtype, Op]]:
    yield from itertools.product(FLOATS, [Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX])
    yield from itertools.product(COMPLEX, [Op.SUM, Op.AVG])


def _integer_cases() -> Iterator[tuple[torch.dtype, Op]]:
    yield from itertools.product(
        INTEGERS, [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, *BITWISE]
    )


def _inputs(ranks: Ranks, dtype: torch.dtype, shape: tuple[int, ...]) -> list:
    """Returns the inputs of all ranks, the same on each."""
    return [_values(dtype, shape, 1000 * r + len(shape)) for r in range(ranks.size)]


def _gloo() -> dist.ProcessGroup:
    return dist.new_group(backend="gloo")


# -- Reductions ------------------------------------------------------------


def _all_reduce(ranks: Ranks) -> None:
    gloo = _gloo()
    for dtype, op in _float_cases():
        for shape in SHAPES:
            inputs = _inputs(ranks, dtype, shape)
            ours = inputs[ranks.rank].clone()
            dist.all_reduce(ours, op)
            _close(ours, _exact(op, inputs), (dtype, op, shape))
            if dtype in (torch.float32, torch.float64) and op != Op.AVG:
                theirs = inputs[ranks.rank].clone()
                dist.all_reduce(theirs, op, group=gloo)
                torch.testing.assert_close(ours, theirs)
    for dtype, op in _integer_cases():
        for shape in SHAPES:
            mine = _inputs(ranks, dtype, shape)[ranks.rank]
            ours, theirs = mine.clone(), mine.clone()
            dist.all_reduce(ours, op)
            dist.all_reduce(theirs, op, group=gloo)
            _same(ours, theirs, (dtype, op, shape))


@pytest.mark.parametrize("size", SIZES)
def test_all_reduce(size: int) -> None:
    launch(_all_reduce, size)


def _same_bits(ranks: Ranks) -> None:
    for dtype in FLOATS:
        mine = _values(dtype, LARGE, ranks.rank)
        dist.all_reduce(mine)
        all_bits = [torch.empty_like(mine) for _ in range(ranks.size)]
        dist.all_gather(all_bits, mine)
        for bits in all_bits:
            _same(bits, mine, dtype)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_all_reduce_gives_all_ranks_the_same_bits(size: int) -> None:
    launch(_same_bits, size)


def _booleans(ranks: Ranks) -> None:
    inputs = torch.stack(_inputs(ranks, torch.bool, (257,)))
    any_of, all_of = inputs.any(0), inputs.all(0)
    odd = inputs.sum(0) % 2 == 1
    for op, expected in [
        (Op.SUM, any_of),
        (Op.MAX, any_of),
        (Op.BOR, any_of),
        (Op.PRODUCT, all_of),
        (Op.MIN, all_of),
        (Op.BAND, all_of),
        (Op.BXOR, odd),
    ]:
        ours = inputs[ranks.rank].clone()
        dist.all_reduce(ours, op)
        _same(ours, expected, op)


@pytest.mark.parametrize("size", [2, 3])
def test_booleans(size: int) -> None:
    launch(_booleans, size)


def _reduce(ranks: Ranks) -> None:
    gloo = _gloo()
    for root in {0, ranks.size // 2, ranks.size - 1}:
        for dtype, op in [*_integer_cases(), (torch.float64, Op.SUM)]:
            for shape in [(0,), (13,), (64, 33)]:
                mine = _inputs(ranks, dtype, shape)[ranks.rank]
                ours, theirs = mine.clone(), mine.clone()
                dist.reduce(ours, root, op)
                dist.reduce(theirs, root, op, group=gloo)
                if ranks.rank != root:
                    _same(ours, mine, "an input")
                elif dtype.is_floating_point:
                    torch.testing.assert_close(ours, theirs)
                else:
                    _same(ours, theirs, (root, dtype, op, shape))


@pytest.mark.parametrize("size", SIZES)
def test_reduce(size: int) -> None:
    launch(_reduce, size)


def _reduce_scatter(ranks: Ranks) -> None:
    for dtype, op in [*_float_cases(), *_integer_cases()]:
        for shape in [(0,), (1,), (7, 3), (509,)]:
            whole = (ranks.size, *shape)
            inputs = _inputs(ranks, dtype, whole)
            mine = inputs[ranks.rank]
            ours = torch.empty(shape, dtype=dtype)
            dist.reduce_scatter(ours, list(mine.clone().unbind(0)), op)
            single = torch.empty(shape, dtype=dtype)
            dist.reduce_scatter_tensor(single, mine.clone(), op)
            _same(ours, single, (dtype, op, shape))
            summed = mine.clone()
            dist.all_reduce(summed, op)
            if dtype.is_floating_point or dtype.is_complex:
                _close(ours, _exact(op, inputs)[ranks.rank], (dtype, op, shape))
            else:
                _same(ours, summed[ranks.rank], (dtype, op, shape))


@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter(size: int) -> None:
    launch(_reduce_scatter, size)


# -- Moves -----------------------------------------------------------------

MOVED = [*FLOATS, *INTEGERS, *COMPLEX, *OTHERS, torch.bool]


def _broadcast(ranks: Ranks) -> None:
    for root in {0, ranks.size - 1}:
        for dtype, shape in itertools.product(MOVED, [*SHAPES, LARGE]):
            expected = _values(torch.float32, shape, 5).to(dtype)
            ours = expected.clone() if ranks.rank == root else torch.zeros_like(expected)
            dist.broadcast(ours, root)
            _same(ours, expected, (root, dtype, shape))


@pytest.mark.parametrize("size", SIZES)
def test_broadcast(size: int) -> None:
    launch(_broadcast, size)


def _gathers(ranks: Ranks) -> None:
    for dtype, shape in itertools.product(MOVED, SHAPES):
        inputs = [
            _values(torch.float32, shape, r).to(dtype) for r in range(ranks.size)
        ]
        mine = inputs[ranks.rank]
        listed = [torch.zeros_like(mine) for _ in range(ranks.size)]
        dist.all_gather(listed, mine)
        for ours, expected in zip(listed, inputs):
            _same(ours, expected, ("all_gather", dtype, shape))
        whole = torch.zeros((ranks.size, *shape), dtype=dtype)
        dist.all_gather_into_tensor(whole, mine)
        _same(whole, torch.stack(inputs), ("all_gather_into_tensor", dtype, shape))
        for root in {0, ranks.size - 1}:
            outputs = None
            if ranks.rank == root:
                outputs = [torch.zeros_like(mine) for _ in range(ranks.size)]
            dist.gather(mine, outputs, dst=root)
            for ours, expected in zip(outputs or [], inputs):
                _same(ours, expected, ("gather", dtype, shape))
            scattered = torch.zeros_like(mine)
            dist.scatter(scattered, inputs if ranks.rank == root else None, src=root)
            _same(scattered, mine, ("scatter", dtype, shape))


@pytest.mark.parametrize("size", SIZES)
def test_gathers_and_scatters(size: int) -> None:
    launch(_gathers, size)


def _gathers_in_place(ranks: Ranks) -> None:
    whole = torch.full((ranks.size, 1021), -1.0)
    whole[ranks.rank] = _values(torch.float32, (1021,), ranks.rank)
    dist.all_gather_into_tensor(whole, whole[ranks.rank])
    parts = [torch.empty(1021) for _ in range(ranks.size)]
    dist.all_gather(parts, whole[ranks.rank])
    for r in range(ranks.size):
        _same(whole[r], _values(torch.float32, (1021,), r), r)
        _same(parts[r], whole[r], r)
    # Outputs that are adjacent in memory need no copy; check both ends.
    guarded = torch.zeros(ranks.size + 2, 33)
    dist.all_gather(list(guarded[1:-1].unbind(0)), torch.full((33,), 1.0 + ranks.rank))
    expected = torch.zeros_like(guarded)
    expected[1:-1] = torch.arange(1.0, ranks.size + 1)[:, None]
    _same(guarded, expected, "next to one another")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_gathers_in_place(size: int) -> None:
    launch(_gathers_in_place, size)


def _splits(ranks: Ranks, seed: int) -> list[list[int]]:
    """Returns the rows that rank i sends to rank j; some are none."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 5, (ranks.size, ranks.size), generator=random).tolist()


def _all_to_all(ranks: Ranks) -> None:
    me = ranks.rank
    for dtype, row in itertools.product(MOVED, [(), (3,), (2, 5)]):
        for seed in range(2):
            table = _splits(ranks, seed)
            send = table[me]
            receive = [table[r][me] for r in range(ranks.size)]
            inputs = [
                _values(torch.float32, (sum(table[r]), *row), r).to(dtype)
                for r in range(ranks.size)
            ]
            parts = [inputs[r].split(table[r]) for r in range(ranks.size)]
            expected = [parts[r][me] for r in range(ranks.size)]
            single = torch.zeros((sum(receive), *row), dtype=dtype)
            dist.all_to_all_single(single, inputs[me].clone(), receive, send)
            _same(single, torch.cat(expected), ("single", dtype, row))
            listed = [torch.zeros_like(part) for part in expected]
            dist.all_to_all(listed, [part.clone() for part in parts[me]])
            for ours, theirs in zip(listed, expected):
                _same(ours, theirs, ("list", dtype, row))
        even = _values(torch.float32, (2 * ranks.size, *row), me).to(dtype)
        out = torch.zeros_like(even)
        dist.all_to_all_single(out, even)
        theirs = [
            _values(torch.float32, (2 * ranks.size, *row), r).to(dtype).split(2)[me]
            for r in range(ranks.size)
        ]
        _same(out, torch.cat(theirs), ("even", dtype, row))


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all(size: int) -> None:
    launch(_all_to_all, size)


# -- Layouts ---------------------------------------------------------------


def _layouts(dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    base = _values(dtype, (6, 10), seed)
    return {
        "transposed": base.t(),
        "every other": base[::2, 1::3],
        "inner": base[1:5, 2:9],
        "offset": base[2:],
        "channels last": _values(dtype, (2, 3, 4, 5), seed).to(
            memory_format=torch.channels_last
        ),
    }


def _strided(ranks: Ranks) -> None:
    size = ranks.size
    names = list(_layouts(torch.float64, 0))
    for name in names:
        values = [_layouts(torch.float64, r)[name] for r in range(size)]
        mine = values[ranks.rank]
        ours = mine.clone(memory_format=torch.preserve_format)
        holder = _layouts(torch.float64, ranks.rank)[name]
        dist.all_reduce(holder)
        torch.testing.assert_close(holder, torch.stack(values).sum(0))
        root = size - 1
        holder = _layouts(torch.float64, ranks.rank)[name]
        dist.broadcast(holder, root)
        _same(holder, values[root], ("broadcast", name))
        # Rows next to the view must not change.
        outputs = [_layouts(torch.float64, 77)[name] for _ in range(size)]
        dist.all_gather(outputs, ours)
        for output, expected in zip(outputs, values):
            _same(output, expected, ("all_gather", name))
        scattered = _layouts(torch.float64, 77)[name]
        dist.scatter(scattered, values if ranks.rank == 0 else None, src=0)
        _same(scattered, mine, ("scatter", name))
        listed = [_layouts(torch.float64, 77)[name] for _ in range(size)]
        dist.all_to_all(listed, [mine] * size)
        for output, expected in zip(listed, values):
            _same(output, expected, ("all_to_all", name))
    base = torch.zeros(4, 6)
    dist.all_reduce(base[:, 1:3].add_(1))
    assert base.sum() == 8 * size and base[:, 1:3].eq(size).all(), base
    negative = torch.full((5,), 1 + 2j, dtype=torch.complex64).conj().imag
    gathered = [torch.zeros(5) for _ in range(size)]
    dist.all_gather(gathered, negative)
    assert all(part.eq(-2).all() for part in gathered), gathered


@pytest.mark.parametrize("size", [1, 2, 3])
def test_strided_tensors_are_as_their_elements(size: int) -> None:
    launch(_strided, size)


def _sparse(ranks: Ranks) -> None:
    gloo = _gloo()
    for counts, shape in [((3, 0, 5), (40,)), ((0, 0, 0), (4, 3)), ((7, 1, 2), (9, 8, 2))]:
        count = counts[ranks.rank]
        sparse_dim = min(len(shape), 2)
        rows = torch.stack([torch.randint(0, n, (count,)) for n in shape[:sparse_dim]])
        values = torch.rand((count, *shape[sparse_dim:]), dtype=torch.float64)
        mine = torch.sparse_coo_tensor(rows, values, shape)
        ours, theirs = mine.clone(), mine.clone()
        dist.all_reduce(ours)
        dist.all_reduce(theirs, group=gloo)
        assert ours.is_sparse
        torch.testing.assert_close(ours.to_dense(), theirs.to_dense())


def test_sparse_tensors() -> None:
    launch(_sparse, 3)


# -- Sub-groups ------------------------------------------------------------


def _subgroups(ranks: Ranks) -> None:
    size = ranks.size
    sets = [{0}, {0, 1}, set(range(size)), set(range(0, size, 2)), {1, size - 1}]
    groups = [(members, dist.new_group(members)) for members in map(sorted, sets)]
    for step in range(3):
        works = []
        for members, group in groups:
            if ranks.rank not in members:
                continue
            tensor = torch.full((1000 + step,), 1.0 + ranks.rank)
            works.append((members, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
        # Different ranks wait in different orders.
        for members, tensor, work in works[:: 1 if ranks.rank % 2 else -1]:
            work.wait()
            assert tensor.eq(float(sum(m + 1 for m in members))).all(), members
    for members, group in groups:
        if ranks.rank not in members:
            continue
        root = members[-1]
        tensor = torch.tensor([float(ranks.rank)])
        dist.broadcast(tensor, root, group=group)
        assert tensor.item() == root
        parts = [torch.zeros(1) for _ in members]
        dist.all_gather(parts, torch.tensor([float(ranks.rank)]), group=group)
        assert [part.item() for part in parts] == members
        dist.barrier(group=group)


@pytest.mark.parametrize("size", [2, 3, 5, 7])
def test_subgroups_that_overlap(size: int) -> None:
    launch(_subgroups, size)


def _own_session(ranks: Ranks) -> None:
    group = dist.new_group([0, 2], backend="gradientflow")
    if ranks.rank != 1:
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=group)
        assert tensor.eq(2).all()


def test_group_beside_another_default_backend() -> None:
    launch(_own_session, 3, backend="gloo")


# -- What is refused -------------------------------------------------------


def _refusals(ranks: Ranks) -> None:
    def refused(kind: type, text: str, call: Callable[..., object], *args: object) -> None:
        with pytest.raises(kind, match=text):
            call(*args)

    ones = torch.ones(4)
    refused(TypeError, "BAND of Float", dist.all_reduce, ones, Op.BAND)
    refused(TypeError, "AVG of Int", dist.all_reduce, ones.int(), Op.AVG)
    refused(TypeError, "AVG of bool", dist.all_reduce, ones.bool(), Op.AVG)
    refused(TypeError, "Short", dist.all_reduce, ones.short())
    refused(Exception, "MAX", dist.all_reduce, ones.cfloat(), Op.MAX)
    premul = dist._make_nccl_premul_sum(2.0)
    refused(TypeError, "PREMUL_SUM of Int", dist.all_reduce, ones.int(), premul)
    refused(ValueError, "contiguous", dist.send, torch.ones(4, 4).t(), (ranks.rank + 1) % 2)
    group = dist.group.WORLD
    refused(ValueError, "root rank: 2", group.broadcast, [ones], _root(2))
    refused(ValueError, "expected 8", group._allgather_base, torch.ones(7), ones)
    refused(ValueError, "one type", group._allgather_base, torch.ones(8).int(), ones)
    refused(ValueError, "one for each of 2", group.allgather, [[ones]], [ones])
    refused(
        ValueError, "add up to 3", group.alltoall_base, ones, ones, [2, 1], [2, 2]
    )
    refused(
        Exception, "sends itself 2 elements but expects 4",
        group.alltoall_base, torch.ones(8), torch.ones(4), [], []
    )
    refused(dist.DistBackendError, "peer", group.send, [ones], ranks.rank, 0)
    # None of these errors does harm.
    dist.all_reduce(ones)
    assert ones.eq(2).all()


def _root(rank: int) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = rank
    return options


def test_misuse_is_refused() -> None:
    launch(_refusals, 2)


def _mismatch(ranks: Ranks) -> None:
    dist.all_reduce(torch.ones(4 + ranks.rank))


def test_ranks_that_differ_get_an_error_that_says_how() -> None:
    from harness import run

    outcomes = run(_mismatch, 2, destroy=False)
    for outcome in outcomes:
        assert outcome.error_type == "DistBackendError", str(outcome)
    assert any("4" in o.error and "5" in o.error for o in outcomes), outcomes
