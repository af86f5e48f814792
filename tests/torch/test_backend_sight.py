"""What people and tools see: profilers, texts of errors, debugging modes."""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from harness import Outcome, Ranks, launch, run
from versions import since_2_13, since_2_14, since_2_15

# -- Profilers -------------------------------------------------------------


def _operations(ranks: Ranks) -> dict[str, tuple[Callable[[], object], list]]:
    """Returns, by name, an operation and the shapes that its event has."""
    me, size = ranks.rank, ranks.size
    a, row = torch.ones(3, 4), torch.ones(5)
    rows = [torch.ones(5) for _ in range(size)]
    whole = torch.ones(5 * size)
    mine = rows if me == 0 else None
    return {
        "all_reduce": (lambda: dist.all_reduce(a), [[3, 4]]),
        "broadcast": (lambda: dist.broadcast(a, 0), [[3, 4]]),
        "reduce": (lambda: dist.reduce(a, 0), [[3, 4]]),
        "all_gather": (lambda: dist.all_gather(rows, row), [[5]]),
        "_all_gather_base": (lambda: dist.all_gather_into_tensor(whole, row), [[5]]),
        "gather": (lambda: dist.gather(row, mine, 0), [[5]]),
        "scatter": (lambda: dist.scatter(row, mine, 0), [[5]] * size if me == 0 else []),
        "reduce_scatter": (lambda: dist.reduce_scatter(row, rows), [[5]] * size),
        "_reduce_scatter_base": (
            lambda: dist.reduce_scatter_tensor(row, whole),
            [[5 * size]],
        ),
        "all_to_all": (lambda: dist.all_to_all(rows, [row] * size), [[5]] * size),
        "all_to_all_single": (lambda: dist.all_to_all_single(whole, whole.clone()), [[10]]),
        "send" if me == 0 else "recv": (
            lambda: dist.send(a, 1) if me == 0 else dist.recv(a, 0),
            [[3, 4]],
        ),
    }


def _profiled(ranks: Ranks) -> None:
    for name, (operation, shapes) in _operations(ranks).items():
        with torch.autograd.profiler.profile(record_shapes=True) as profiler:
            operation()
        title = f"gradientflow:{name}"
        events = [event for event in profiler.function_events if event.name == title]
        assert len(events) == 1, (name, [e.name for e in profiler.function_events])
        assert events[0].is_async, name
        assert events[0].input_shapes == shapes, (name, events[0].input_shapes)


def test_profilers_see_the_shapes_of_inputs() -> None:
    launch(_profiled, 2)


# -- Ranks that do not call the same ---------------------------------------


def _mismatch(ranks: Ranks, kind: str, group: list[int]) -> None:
    ours = dist.new_group(group) if group else None
    if group and ranks.rank not in group:
        ranks.wait_for("over", group)
        return
    first = ranks.rank == 0
    try:
        if kind == "size":
            dist.all_reduce(torch.ones(4 if first else 7, 2), group=ours)
        elif kind == "type":
            dist.all_reduce(torch.ones(5, dtype=torch.half if first else None), group=ours)
        elif kind == "operation":
            dist.all_reduce(torch.ones(5), dist.ReduceOp.MAX if first else dist.ReduceOp.SUM)
        elif first:
            dist.all_reduce(torch.ones(5), group=ours)
        else:
            dist.broadcast(torch.ones(5), 0, group=ours)
    finally:
        ranks.started("over")
        # Ranks tell each other what they called by the store, which ends with rank 0.
        ranks.wait_for("over", group or range(ranks.size))


MISMATCHES = {
    "size": ("all_reduce (SUM) of Float[4, 2]", "all_reduce (SUM) of Float[7, 2]"),
    "type": ("all_reduce (SUM) of Half[5]", "all_reduce (SUM) of Float[5]"),
    "operation": ("all_reduce (MAX) of Float[5]", "all_reduce (SUM) of Float[5]"),
    "call": ("all_reduce (SUM) of Float[5]", "broadcast (root 0) of Float[5]"),
}


def _assert_says_who_called_what(outcomes: list[Outcome], kind: str) -> None:
    for outcome in outcomes:
        assert outcome.error_type == "DistBackendError", str(outcome)
        lines = outcome.error.split("\n")
        for outcome_of, called in zip(outcomes, MISMATCHES[kind]):
            line = next(x for x in lines if x.startswith(f"  rank {outcome_of.rank}: "))
            assert called in line, outcome.error


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
@pytest.mark.parametrize("kind", MISMATCHES)
def test_a_mismatch_says_what_each_rank_called(fabric: str, kind: str) -> None:
    env = {"GRADIENTFLOW_FABRIC": fabric}
    outcomes = run(_mismatch, 2, kind, [], destroy=False, env=env)
    _assert_says_who_called_what(outcomes, kind)


def test_a_mismatch_in_a_group() -> None:
    outcomes = run(_mismatch, 3, "size", [0, 2], destroy=False, store="tcp")
    assert outcomes[1].ok, str(outcomes[1])
    _assert_says_who_called_what([outcomes[0], outcomes[2]], "size")


def _silent_mismatch(ranks: Ranks) -> None:
    work = dist.all_reduce(torch.ones(3 + ranks.rank), async_op=True)
    if ranks.rank == 0:
        began = time.monotonic()
        try:
            work.wait()
        finally:
            ranks.started("over")
            assert time.monotonic() - began < 20
    else:
        ranks.wait_for("over", [0])


def test_a_rank_that_never_asks_keeps_nobody_waiting() -> None:
    outcomes = run(_silent_mismatch, 2, destroy=False)
    assert outcomes[0].error_type == "DistBackendError", str(outcomes[0])
    assert "Float[3]" in outcomes[0].error, outcomes[0].error


# -- Torch's words ---------------------------------------------------------


def _barrier_alone(ranks: Ranks, way: str) -> None:
    if ranks.rank == 1:
        ranks.wait_for("error", [0])
        return
    try:
        if way == "barrier":
            dist.barrier()
        elif way == "call":
            group = dist.group.WORLD
            options = dist.AllreduceOptions()
            options.timeout = timedelta(milliseconds=1)
            group.allreduce([torch.ones(2)], options).wait()
        else:
            dist.monitored_barrier(timeout=timedelta(0))
    finally:
        ranks.started("error")


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("barrier", r" Timed out waiting [45]\d{3}ms for gradientflow:barrier"),
        ("call", " Timed out waiting 1ms for gradientflow:all_reduce"),
        pytest.param(
            "monitored", " Rank 0 timed out in monitoredBarrier after 0 ms", marks=since_2_14
        ),
    ],
)
def test_time_outs_are_worded_as_torchs(way: str, text: str) -> None:
    timeout = 4.0 if way == "barrier" else 60.0
    outcome = run(_barrier_alone, 2, way, timeout=timeout, destroy=False)[0]
    assert outcome.error_type == "DistBackendError", str(outcome)
    assert re.search(text, outcome.error), outcome.error


def _needs_one_that_left(ranks: Ranks) -> None:
    dist.barrier()
    if ranks.rank == 1:
        dist.destroy_process_group()
        ranks.started("gone")
        return
    ranks.wait_for("gone", [1])
    dist.all_reduce(torch.ones(3))


def test_a_rank_that_left_is_named_with_what_needs_it() -> None:
    outcome = run(_needs_one_that_left, 2, destroy=False)[0]
    assert outcome.error_type == "DistBackendError", str(outcome)
    assert "all_reduce (SUM) of Float[3]" in outcome.error, outcome.error
    assert outcome.error.endswith("left the job, but rank 0 still needs it"), outcome.error


# -- TORCH_DISTRIBUTED_DEBUG=DETAIL ----------------------------------------

DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def _everything(ranks: Ranks) -> None:
    for operation, _ in _operations(ranks).values():
        operation()
    group = dist.new_group([0, 1])
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=group)
    assert tensor.eq(2).all()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.ones(2, 3)).sum().backward()
    assert dist.group.WORLD._get_sequence_number_for_group() > 0
    dist.barrier()


@since_2_13
def test_everything_under_detail() -> None:
    launch(_everything, 2, env=DETAIL)


def _wrong_under_detail(ranks: Ranks) -> None:
    if ranks.rank == 0:
        dist.all_reduce(torch.ones(4))
    else:
        dist.all_reduce(torch.ones(2, 3))


def test_detail_tells_of_a_mismatch() -> None:
    for outcome in run(_wrong_under_detail, 2, destroy=False, env=DETAIL):
        assert outcome.error_type == "RuntimeError", str(outcome)
        assert "Detected mismatch between collectives" in outcome.error


# -- The flight recorder ---------------------------------------------------


def _entries() -> list[dict]:
    trace = torch._C._distributed_c10d._dump_fr_trace(backend="gradientflow")
    return pickle.loads(trace).get("entries", [])


def _recorded(ranks: Ranks) -> None:
    dist.all_reduce(torch.ones(3, 4))
    work = dist.all_reduce(torch.ones(5), async_op=True)
    work.wait()
    first, second = [e for e in _entries() if "all_reduce" in e["profiling_name"]][:2]
    assert first["profiling_name"] == "gradientflow:all_reduce", first
    assert first["input_sizes"] == [[3, 4]] and second["input_sizes"] == [[5]]
    for entry in (first, second):
        assert entry["state"] == "completed", entry
        assert 0 < entry["duration_ms"] < 60_000, entry
    if ranks.rank == 0:
        late = dist.all_reduce(torch.ones(2), async_op=True)
        under_way = _entries()[-1]
        assert under_way["state"] != "completed", under_way
        ranks.started("seen")
        late.wait()
    else:
        ranks.wait_for("seen", [0])
        dist.all_reduce(torch.ones(2))


@since_2_15
def test_the_flight_recorder_knows_what_is_over() -> None:
    launch(_recorded, 2)
