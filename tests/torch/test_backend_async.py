"""Operations under way: futures, coalescing, messages."""

from __future__ import annotations

import random
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from harness import Ranks, launch
from versions import SINCE_2_14

# -- Works and futures -----------------------------------------------------


def _many_under_way(ranks: Ranks) -> None:
    order = random.Random(ranks.rank)
    for _ in range(20):
        tensors = [torch.full((n,), float(ranks.rank)) for n in (1, 7, 1000, 70_001, 0)]
        works = [dist.all_reduce(t, async_op=True) for t in tensors]
        assert all(work.is_success() or not work.is_completed() for work in works)
        order.shuffle(works)
        for work in works:
            assert work.wait()
            assert work.is_completed() and work.is_success()
        total = ranks.size * (ranks.size - 1) / 2
        assert all(t.eq(total).all() for t in tensors)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_many_under_way_waited_for_in_any_order(size: int) -> None:
    launch(_many_under_way, size)


def _futures(ranks: Ranks) -> None:
    tensor = torch.full((5,), float(ranks.rank))
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    assert future is not None
    chained = future.then(lambda f: f.value()[0].sum() * 2)
    total = 5.0 * ranks.size * (ranks.size - 1) / 2
    assert chained.wait().item() == 2 * total
    assert future.value()[0].data_ptr() == tensor.data_ptr()
    # Requested after everything has ended.
    late = work.get_future()
    assert late.done() and late.value()[0].data_ptr() == tensor.data_ptr()
    assert [t.data_ptr() for t in work.result()] == [tensor.data_ptr()]
    # wait() returns only after the future has its value.
    for _ in range(200):
        work = dist.all_reduce(torch.ones(3), async_op=True)
        future = work.get_future()
        work.wait()
        assert future.done() and future.value()[0].eq(ranks.size).all()
    outputs = [torch.empty(2) for _ in range(ranks.size)]
    work = dist.all_gather(outputs, torch.full((2,), float(ranks.rank)), async_op=True)
    value = work.get_future().wait()
    assert [t[0].item() for t in value] == list(range(ranks.size))
    assert dist.barrier(async_op=True).get_future().wait() == []


@pytest.mark.parametrize("size", [1, 2, 3])
def test_futures(size: int) -> None:
    launch(_futures, size)


def _callbacks_that_wait(ranks: Ranks) -> None:
    """Like PowerSGD's: an operation within the callback of another."""

    def again(future: torch.futures.Future) -> torch.Tensor:
        tensor = future.value()[0]
        inner = dist.all_reduce(tensor, async_op=True).get_future()
        return inner.wait()[0]

    works = [dist.all_reduce(torch.full((9,), 1.0 + i), async_op=True) for i in range(3)]
    groups = [work.get_future().then(again) for work in works[:1]]
    for i, future in enumerate(groups):
        assert future.wait().eq((1.0 + i) * ranks.size**2).all()
    for work in works:
        work.wait()


@pytest.mark.parametrize("size", [2, 3])
def test_callbacks_may_wait_for_other_operations(size: int) -> None:
    launch(_callbacks_that_wait, size)


def _nested(ranks: Ranks) -> None:
    """Each level waits within the callback of the one above."""

    def level(depth: int) -> torch.Tensor:
        future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
        if depth == 0:
            return future.wait()[0]
        return future.then(lambda _: level(depth - 1)).wait()

    assert level(12).eq(ranks.size).all()


def test_callbacks_that_wait_may_nest() -> None:
    launch(_nested, 2)


def _callback_of_its_own(ranks: Ranks) -> None:
    work = dist.all_reduce(torch.ones(4), async_op=True)
    seen = work.get_future().then(lambda _: work.wait()).wait()
    assert seen


def test_a_callback_may_wait_for_its_own_operation() -> None:
    launch(_callback_of_its_own, 2)


def _callback_raises(ranks: Ranks) -> None:
    def fail(_: torch.futures.Future) -> None:
        raise KeyError("from the callback")

    future = dist.all_reduce(torch.ones(4), async_op=True).get_future().then(fail)
    with pytest.raises(Exception, match="from the callback"):
        future.wait()
    dist.barrier()


def test_what_a_callback_raises_is_its_futures() -> None:
    launch(_callback_raises, 2)


def _forgotten(ranks: Ranks) -> None:
    """Nobody keeps the works or the tensors; later operations are still right."""
    for _ in range(50):
        dist.all_reduce(torch.ones(10_000), async_op=True)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == ranks.size


def test_works_that_nobody_keeps() -> None:
    launch(_forgotten, 3)


def _from_threads(ranks: Ranks) -> None:
    groups = [dist.new_group(list(range(ranks.size))) for _ in range(4)]
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for step in range(100):
                tensor = torch.full((100 + number,), float(step))
                dist.all_reduce(tensor, group=groups[number])
                assert tensor.eq(step * ranks.size).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.parametrize("size", [2, 3])
def test_groups_used_by_threads_at_the_same_time(size: int) -> None:
    launch(_from_threads, size)


def _waited_by_threads(ranks: Ranks) -> None:
    for _ in range(30):
        tensor = torch.ones(50_000)
        work = dist.all_reduce(tensor, async_op=True)
        threads = [threading.Thread(target=work.wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert tensor.eq(ranks.size).all()


def test_one_work_waited_for_by_several_threads() -> None:
    launch(_waited_by_threads, 2)


# -- Coalescing ------------------------------------------------------------


def _coalesced(ranks: Ranks) -> None:
    size = ranks.size
    lengths = [1, 0, 33, 4096, 65_537]
    tensors = [torch.full((n,), float(ranks.rank)) for n in lengths]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(t.eq(size * (size - 1) / 2).all() for t in tensors)

    with dist._coalescing_manager():
        outputs = [torch.zeros(size * n) for n in lengths]
        for n, output in zip(lengths, outputs):
            dist.all_gather_into_tensor(output, torch.full((n,), float(ranks.rank)))
    for n, output in zip(lengths, outputs):
        expected = torch.arange(float(size)).repeat_interleave(n)
        assert torch.equal(output, expected)

    with dist._coalescing_manager():
        outputs = [torch.zeros(n) for n in lengths]
        for n, output in zip(lengths, outputs):
            dist.reduce_scatter_tensor(output, torch.arange(float(size)).repeat_interleave(n))
    assert all(o.eq(float(ranks.rank * size)).all() for o in outputs)

    tensors = [torch.full((n,), float(ranks.rank)) for n in lengths]
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.MAX
    value = dist.group.WORLD.allreduce_coalesced(tensors, options).get_future().wait()
    assert len(value) == len(lengths)
    assert all(t.eq(size - 1.0).all() for t in tensors)

    inputs = [torch.full((n,), float(ranks.rank)) for n in lengths]
    lists = [[torch.zeros(n) for n in lengths] for _ in range(size)]
    dist.all_gather_coalesced(lists, inputs)
    for r, outputs in enumerate(lists):
        assert all(output.eq(r).all() for output in outputs)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_coalesced_collectives(size: int) -> None:
    launch(_coalesced, size)


def _device_coalescing(ranks: Ranks) -> None:
    """Blocks that combine any operations into one work."""
    tensor, parts = torch.ones(10), [torch.zeros(1) for _ in range(ranks.size)]
    device = torch.device("cpu")
    group = dist.group.WORLD
    group._start_coalescing(device)
    group.allreduce([tensor])
    group.allgather([parts], [torch.tensor([float(ranks.rank)])])
    work = group._end_coalescing(device)
    assert len(work.get_future().wait()) == 1 + ranks.size
    work.wait()
    assert work.is_completed() and work.is_success()
    assert tensor.eq(ranks.size).all()
    assert [part.item() for part in parts] == list(range(ranks.size))
    with pytest.raises(RuntimeError, match="without startCoalescing"):
        group._end_coalescing(device)
    # A block that an exception ended does not affect later operations.
    group._start_coalescing(device)
    with pytest.raises(ValueError):
        group.allreduce([tensor, tensor])
    work = group.allreduce([tensor])
    work.wait()
    group._start_coalescing(device)
    group._end_coalescing(device).wait()
    assert tensor.eq(ranks.size**2).all()


@pytest.mark.parametrize("size", [2, 3])
def test_coalescing_blocks(size: int) -> None:
    launch(_device_coalescing, size)


# -- Messages --------------------------------------------------------------


def _ring(ranks: Ranks) -> None:
    right, left = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
    for dtype in [torch.float32, torch.int16, torch.bool, torch.complex64]:
        for length in [0, 1, 13, 4096, 1_000_003]:
            mine = torch.full((length,), ranks.rank % 2).to(dtype)
            theirs = torch.empty_like(mine)
            operations = [
                dist.P2POp(dist.isend, mine, right, tag=3),
                dist.P2POp(dist.irecv, theirs, left, tag=3),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            assert theirs.eq(torch.full((length,), left % 2).to(dtype)).all()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_batches_of_messages(size: int) -> None:
    launch(_ring, size)


def _tags(ranks: Ranks) -> None:
    if ranks.rank == 0:
        for tag in [0, 5, 2**31 - 1, 5]:
            dist.send(torch.tensor([tag]), 1, tag=tag)
        dist.send(torch.tensor([7]), 1)
        return
    # In a different order from that of sending.
    got = [torch.zeros(1, dtype=torch.int64) for _ in range(4)]
    works = [
        dist.irecv(tensor, 0, tag=tag)
        for tensor, tag in zip(got, [2**31 - 1, 5, 0, 5])
    ]
    for work in reversed(works):
        work.wait()
    assert [tensor.item() for tensor in got] == [2**31 - 1, 5, 0, 5]
    assert works[0]._source_rank() == 0
    dist.recv(got[0], 0)
    assert got[0].item() == 7


def test_messages_match_by_tag() -> None:
    launch(_tags, 2)


def _any_source(ranks: Ranks) -> None:
    rounds = 20
    if ranks.rank > 0:
        for i in range(rounds):
            dist.send(torch.tensor([ranks.rank, i]), 0, tag=4)
        return
    seen: dict[int, int] = {}
    for _ in range(rounds * (ranks.size - 1)):
        tensor = torch.zeros(2, dtype=torch.int64)
        source = dist.recv(tensor, tag=4)
        assert tensor[0].item() == source
        assert tensor[1].item() == seen.get(source, 0)  # In order, by sender.
        seen[source] = seen.get(source, 0) + 1
    assert seen == {r: rounds for r in range(1, ranks.size)}


@pytest.mark.parametrize("size", [2, 3, 5])
def test_messages_from_any_rank(size: int) -> None:
    launch(_any_source, size)


def _any_source_in_group(ranks: Ranks) -> None:
    members = [1, 3]
    group = dist.new_group(members)
    if ranks.rank == 3:
        dist.send(torch.tensor([33.0]), 1, group=group)
    elif ranks.rank == 1:
        tensor = torch.zeros(1)
        assert dist.recv(tensor, group=group) == 3 and tensor.item() == 33


def test_messages_from_any_rank_of_a_group() -> None:
    launch(_any_source_in_group, 4)


def _lengths(ranks: Ranks) -> None:
    if ranks.rank == 0:
        dist.send(torch.ones(5), 1)
    else:
        with pytest.raises(dist.DistBackendError, match="20"):
            dist.recv(torch.ones(4), 0)
    dist.barrier()


def test_a_message_of_another_length_is_an_error_of_the_receiver() -> None:
    launch(_lengths, 2)


# -- Barriers --------------------------------------------------------------


def _barriers(ranks: Ranks) -> None:
    for step in range(5):
        name = f"at {step}"
        ranks.started(name)
        if step % 2 or not SINCE_2_14:
            dist.barrier()
        else:
            dist.monitored_barrier(timeout=timedelta(seconds=60), wait_all_ranks=step == 0)
        for rank in range(ranks.size):
            assert ranks.time_of(name, rank) is not None, (rank, step)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_barriers(size: int) -> None:
    launch(_barriers, size)
