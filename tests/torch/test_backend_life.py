"""Process groups from start to end: how they are named, made and destroyed."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from harness import Ranks, launch
from scripts import assert_clean, run_script
from versions import since_2_14

# -- Ways to make one ------------------------------------------------------


def _init(ranks: Ranks, backend: str, name: str = "store") -> None:
    dist.init_process_group(
        backend,
        store=dist.FileStore(os.path.join(ranks.directory, name), ranks.size),
        rank=ranks.rank,
        world_size=ranks.size,
        timeout=timedelta(seconds=60),
    )


def _works(ranks: Ranks) -> None:
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    assert tensor.eq(ranks.size).all()


def _named(ranks: Ranks, backend: str, ours: bool) -> None:
    _init(ranks, backend)
    _works(ranks)
    name = dist.group.WORLD._get_backend(torch.device("cpu")).name()
    assert (name == "gradientflow") == ours, name


@pytest.mark.parametrize(
    ("backend", "ours"),
    [
        ("gradientflow", True),
        ("GradientFlow", True),
        ("cpu:gradientflow,cuda:gloo", True),
        ("cpu:gradientflow,cuda:gradientflow", True),
        ("cpu:gloo,cuda:gradientflow", False),
    ],
)
def test_names_of_backends(backend: str, ours: bool) -> None:
    launch(_named, 2, backend, ours, backend=None)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tcp_store(size: int) -> None:
    launch(_works, size, store="tcp")


def _threads_as_ranks(ranks: Ranks) -> None:
    """The ranks are threads that share one store of this process."""
    from gradientflow.torch import _C

    store = dist.HashStore()
    failures: list[BaseException] = []

    def run_rank(rank: int) -> None:
        try:
            options = _C.Backend.Options(timedelta(seconds=60))
            backend = _C.Backend.open(store, rank, 3, options)
            tensor = torch.ones(1000)
            backend.allreduce([tensor]).wait()
            assert tensor.eq(3).all()
            backend.shutdown()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run_rank, args=(r,)) for r in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_hash_store() -> None:
    launch(_threads_as_ranks, 1, backend=None)


def _detail(ranks: Ranks) -> None:
    _works(ranks)
    group = dist.new_group([0, 1])
    if ranks.rank < 2:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        assert tensor.eq(2).all()


def test_debug_detail() -> None:
    launch(_detail, 3, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})


def _bad_setting(ranks: Ranks) -> None:
    with pytest.raises(dist.DistBackendError, match="GRADIENTFLOW_FABRIC"):
        _init(ranks, "gradientflow")


def test_a_setting_that_is_wrong() -> None:
    launch(_bad_setting, 1, backend=None, env={"GRADIENTFLOW_FABRIC": "carrier pigeon"})


@since_2_14
def test_without_an_import() -> None:
    """torch finds the backend by its entry point."""
    ended = run_script(
        """
        import sys
        import torch
        import torch.distributed as dist
        dist.init_process_group("gradientflow")
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        assert tensor.eq(2).all() and "gradientflow.torch" in sys.modules
        dist.destroy_process_group()
        """,
        2,
    )
    assert_clean(ended)


# -- Ends ------------------------------------------------------------------


def _again(ranks: Ranks) -> None:
    for _ in range(5):
        _init(ranks, "gradientflow", "the same store")
        _works(ranks)
        group = dist.new_group(list(range(ranks.size)))
        dist.barrier(group)
        dist.destroy_process_group()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_init_and_destroy_again_and_again(size: int) -> None:
    launch(_again, size, backend=None)


def _after_destroy(ranks: Ranks) -> None:
    group = dist.group.WORLD
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.wait()
    dist.destroy_process_group()
    with pytest.raises(dist.DistBackendError, match="shut down"):
        group.allreduce([torch.ones(3)])
    # A work that is kept for its result keeps nothing open.
    assert work.wait() and work.result()[0].eq(ranks.size).all()
    assert threading.active_count() == 1
    assert not [name for name in _thread_names() if name.startswith("gf")]


def _thread_names() -> list[str]:
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as f:
            names.append(f.read().strip())
    return names


def test_calls_after_destroy() -> None:
    launch(_after_destroy, 2)


def _destroy_under_way(ranks: Ranks) -> list[float]:
    tensors = [torch.full((100_000,), float(i)) for i in range(8)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    dist.destroy_process_group()
    return [tensor[-1].item() for tensor in tensors]


def test_destroy_waits_for_what_is_under_way() -> None:
    for values in launch(_destroy_under_way, 3):
        assert values == [3.0 * i for i in range(8)]


def _callback_at_destroy(ranks: Ranks) -> list[int]:
    seen: list[int] = []
    for i in range(20):
        future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
        future.add_done_callback(lambda _, i=i: seen.append(i))
    dist.destroy_process_group()
    return sorted(seen)


def test_destroy_waits_for_callbacks() -> None:
    assert launch(_callback_at_destroy, 2) == [list(range(20))] * 2


def _destroy_subgroup(ranks: Ranks) -> None:
    for step in range(3):
        group = dist.new_group([0, 1])
        if ranks.rank < 2:
            dist.all_reduce(torch.ones(3), group=group)
            dist.destroy_process_group(group)
        _works(ranks)


def test_destroying_a_subgroup_leaves_the_others() -> None:
    launch(_destroy_subgroup, 3)


def _subgroup_outlives(ranks: Ranks) -> None:
    default = dist.group.WORLD
    group = dist.new_group(list(range(ranks.size)))
    default._get_backend(torch.device("cpu")).shutdown()
    tensor = torch.ones(7)
    group.allreduce([tensor]).wait()
    assert tensor.eq(ranks.size).all()


def test_a_subgroup_outlives_the_default_group() -> None:
    launch(_subgroup_outlives, 2)


START = """
import torch
import torch.distributed as dist
import gradientflow.torch
dist.init_process_group("gradientflow")
tensor = torch.ones(100)
dist.all_reduce(tensor)
assert tensor.eq(dist.get_world_size()).all()
"""


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "dist.destroy_process_group()",
        "keep = dist.all_reduce(tensor, async_op=True).get_future()",
        "group = dist.new_group([0, 1]); dist.barrier(group)",
        "import sys; sys.exit(0)",
        "import atexit; atexit.register(lambda: dist.all_reduce(tensor))",
        "import threading; t = threading.Thread(target=lambda: dist.all_reduce(tensor)); t.start()",
    ],
    ids=["nothing", "destroy", "under way", "group", "exit", "atexit", "thread"],
)
def test_interpreters_end_cleanly(rest: str) -> None:
    assert_clean(run_script(START + rest, 2))


def test_an_exception_ends_the_interpreter() -> None:
    ended = run_script(
        START + "if dist.get_rank() == 1: raise SystemExit(3)\ndist.all_reduce(tensor)", 2
    )
    assert ended[1].exit_code == 3 and not ended[1].errors, ended[1]
    assert ended[0].exit_code == 1, ended[0]
    assert "DistBackendError" in ended[0].errors and "rank 1" in ended[0].errors


def test_a_callback_under_way_at_the_end() -> None:
    rest = """
import time
def slowly(future):
    for _ in range(100):
        time.perf_counter()
    return future.value()
futures = [
    dist.all_reduce(torch.ones(5), async_op=True).get_future().then(slowly)
    for _ in range(50)
]
"""
    assert_clean(run_script(START + rest, 2))
