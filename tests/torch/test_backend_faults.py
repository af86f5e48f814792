"""Ranks that die, stop, or do not come: errors that say so, and no hangs."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from harness import Outcome, Ranks, launch, run
from versions import since_2_14

FABRICS = ["shm", "tcp"]


def _assert_named(outcome: Outcome, rank: int) -> None:
    assert outcome.error_type == "DistBackendError", str(outcome)
    assert f"rank {rank}" in outcome.error, outcome.error


def _die(ranks: Ranks, number: int) -> None:
    """Dies, so that survivors see it; `number` in the ranks' directory tells
    when."""
    ranks.started(f"death {number}")
    os.kill(os.getpid(), number)


def _seconds_after(ranks: Ranks, what: str, rank: int) -> float:
    began = ranks.time_of(what, rank)
    assert began is not None, f"rank {rank} did not come to {what}"
    return time.monotonic() - began


# -- Deaths and stops ------------------------------------------------------


def _killed(ranks: Ranks, victim: int, kind: str) -> float:
    tensor = torch.ones(50_000)
    for step in range(10_000):
        if step == 20 and ranks.rank == victim:
            _die(ranks, signal.SIGKILL)
        try:
            if kind == "future":
                dist.all_reduce(tensor, async_op=True).get_future().wait()
            elif kind == "message":
                _ring(ranks)
            elif kind == "barrier":
                dist.barrier()
            else:
                dist.all_reduce(tensor)
        except Exception:
            ranks.started("error")
            raise
    raise AssertionError("nobody noticed")


def _ring(ranks: Ranks) -> None:
    right, left = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
    got = torch.zeros(1000)
    works = [dist.isend(torch.ones(1000), right), dist.irecv(got, left)]
    for work in works:
        work.wait()


def _seconds_to_errors(size: int, victim: int, *args: object, **how: object) -> list[float]:
    """Runs _killed, or a similar body, and checks which rank was named; returns
    the time from the death to each survivor's exception."""
    outcomes = run(_timed, size, victim, *args, **how)
    assert outcomes[victim].signal == signal.SIGKILL
    seconds = []
    for outcome in outcomes:
        if outcome.rank == victim:
            continue
        assert outcome.ok, str(outcome)
        kind, text, took = outcome.value
        assert kind == "DistBackendError", text
        assert f"rank {victim}" in text, text
        seconds.append(took)
    return seconds


def _timed(ranks: Ranks, victim: int, kind: str) -> tuple[str, str, float]:
    try:
        _killed(ranks, victim, kind)
    except Exception as error:
        took = _seconds_after(ranks, f"death {int(signal.SIGKILL)}", victim)
        return type(error).__name__, str(error), took
    raise AssertionError("nobody noticed")


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("kind", ["wait", "future", "message", "barrier"])
def test_a_killed_rank_is_an_error_within_a_second(fabric: str, kind: str) -> None:
    seconds = _seconds_to_errors(
        3, 1, kind, destroy=False, env={"GRADIENTFLOW_FABRIC": fabric}
    )
    assert max(seconds) < 1.0, seconds


@pytest.mark.parametrize("size", [2, 5])
def test_rank_0_killed(size: int) -> None:
    seconds = _seconds_to_errors(size, 0, "wait", destroy=False)
    assert max(seconds) < 1.0, seconds


def _stopped(ranks: Ranks) -> None:
    tensor = torch.ones(100)
    dist.all_reduce(tensor)
    if ranks.rank == 1:
        _die(ranks, signal.SIGSTOP)
    while True:
        dist.all_reduce(tensor)


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_stopped_rank_is_an_error_after_the_heartbeat_time_out(fabric: str) -> None:
    outcomes = run(
        _stopped,
        3,
        leave=[1],
        destroy=False,
        env={
            "GRADIENTFLOW_FABRIC": fabric,
            "GRADIENTFLOW_HEARTBEAT_TIMEOUT_SECONDS": "2",
        },
    )
    for rank in (0, 2):
        _assert_named(outcomes[rank], 1)
        assert outcomes[rank].ended - outcomes[rank].began < 20


def _after_death(ranks: Ranks) -> list[str]:
    """After the job has ended everything fails at once, and may be cleaned up."""
    if ranks.rank == 1:
        _die(ranks, signal.SIGKILL)
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    errors = []
    for _ in range(3):
        try:
            dist.all_reduce(torch.ones(10))
        except dist.DistBackendError as error:
            errors.append(str(error))
    errors.append(str(group.get_error()))
    return errors


@since_2_14
def test_calls_after_a_death() -> None:
    outcomes = run(_after_death, 2)
    assert outcomes[0].ok, str(outcomes[0])
    *texts, state = outcomes[0].value
    assert len(texts) == 3 and all("rank 1" in text for text in texts), texts
    assert "SUCCESS" not in state


def _death_in_subgroup(ranks: Ranks) -> None:
    group = dist.new_group([0, 1])
    if ranks.rank == 2:
        ranks.wait_for("in group", [0, 1])
        _die(ranks, signal.SIGKILL)
    dist.barrier(group)
    ranks.started("in group")
    while True:
        dist.all_reduce(torch.ones(10), group=group)


def test_a_death_ends_the_groups_that_it_was_not_in() -> None:
    """All groups share a session, so the end of its job ends them all."""
    outcomes = run(_death_in_subgroup, 3, destroy=False)
    for rank in (0, 1):
        _assert_named(outcomes[rank], 2)


# -- Time-outs -------------------------------------------------------------


def _does_not_come(ranks: Ranks) -> None:
    dist.barrier()
    if ranks.rank == 1:
        ranks.wait_for("error", [0, 2])
        return
    try:
        dist.all_reduce(torch.ones(10))
    finally:
        ranks.started("error")


def test_a_rank_that_does_not_come_is_named() -> None:
    outcomes = run(_does_not_come, 3, timeout=3.0, destroy=False)
    for rank in (0, 2):
        _assert_named(outcomes[rank], 1)
        assert 2 < outcomes[rank].ended - outcomes[rank].began < 20


def _does_not_come_to_one(ranks: Ranks) -> None:
    """All communicate in one group; in another they wait for rank 2."""
    beside = dist.new_group()
    if ranks.rank != 2:
        # Nobody gives this call a deadline by waiting for it.
        future = dist.all_reduce(torch.ones(10), async_op=True).get_future()
    tensor = torch.ones(10)
    try:
        while True:
            dist.all_reduce(tensor, group=beside)
    finally:
        if ranks.rank != 2:
            with pytest.raises(dist.DistBackendError, match="rank 2"):
                future.wait()


def test_another_group_does_not_keep_a_call_waiting() -> None:
    outcomes = run(_does_not_come_to_one, 3, timeout=3.0, destroy=False)
    for rank in (0, 1):
        _assert_named(outcomes[rank], 2)
        assert 2 < outcomes[rank].ended - outcomes[rank].began < 20


def _explicit_wait(ranks: Ranks) -> None:
    tensor = torch.ones(10)
    if ranks.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        began = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="Timed out waiting 300ms"):
            work.wait(timedelta(milliseconds=300))
        assert 0.2 < time.monotonic() - began < 10
        assert not work.is_completed()
        ranks.started("had enough")
        work.wait()
    else:
        ranks.wait_for("had enough", [0])
        dist.all_reduce(tensor)
    assert tensor.eq(2).all()


def test_a_wait_that_times_out_leaves_the_work_under_way() -> None:
    launch(_explicit_wait, 2)


def _short_group(ranks: Ranks, way: str) -> None:
    timeout = timedelta(seconds=1) if way == "new_group" else None
    group = dist.new_group([0, 1], timeout=timeout)
    if way == "setter":
        group.set_timeout(timedelta(seconds=1))
    options = dist.AllreduceOptions()
    if way == "call":
        options.timeout = timedelta(seconds=1)
    if ranks.rank == 1:
        ranks.wait_for("error", [0])
        return
    try:
        group.allreduce([torch.ones(10)], options).wait()
    finally:
        ranks.started("error")


@pytest.mark.parametrize("way", ["new_group", "setter", "call"])
def test_an_operations_own_time_out(way: str) -> None:
    outcome = run(_short_group, 2, way, destroy=False)[0]
    assert outcome.error_type == "DistBackendError", str(outcome)
    for part in ("all_reduce", "1000ms", "rank 0"):
        assert part in outcome.error, outcome.error
    assert 0.9 < outcome.ended - outcome.began < 20


def _joins_alone(ranks: Ranks) -> None:
    if ranks.rank == 1:
        ranks.wait_for("error", [0, 2])
        return
    try:
        dist.init_process_group(
            "gradientflow",
            store=dist.FileStore(os.path.join(ranks.directory, "s"), 3),
            rank=ranks.rank,
            world_size=3,
            timeout=timedelta(seconds=2),
        )
    finally:
        ranks.started("error")


def test_a_rank_that_does_not_join_is_named() -> None:
    outcomes = run(_joins_alone, 3, backend=None)
    for rank in (0, 2):
        _assert_named(outcomes[rank], 1)


# -- monitored_barrier -----------------------------------------------------


def _monitored(ranks: Ranks, absent: list[int], wait_all: bool) -> None:
    if ranks.rank in absent:
        ranks.wait_for("error", set(range(ranks.size)) - set(absent))
        return
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=2), wait_all_ranks=wait_all)
    finally:
        ranks.started("error")


def _errors_of_barrier(absent: list[int], wait_all: bool) -> list[Outcome]:
    outcomes = run(_monitored, 5, absent, wait_all, destroy=False)
    for outcome in outcomes:
        if outcome.rank not in absent:
            assert outcome.error_type == "DistBackendError", str(outcome)
    return outcomes


@since_2_14
def test_monitored_barrier_names_all_absent_ranks() -> None:
    outcomes = _errors_of_barrier([2, 4], True)
    for rank in (0, 1, 3):
        assert "Ranks 2, 4 failed to pass" in outcomes[rank].error, outcomes[rank].error


@since_2_14
def test_monitored_barrier_names_the_first_absent_rank() -> None:
    outcomes = _errors_of_barrier([1, 3], False)
    assert "Rank 1 failed to pass" in outcomes[0].error


@since_2_14
def test_monitored_barrier_without_rank_0() -> None:
    outcomes = _errors_of_barrier([0], True)
    for rank in range(1, 5):
        assert "Rank 0 failed to pass" in outcomes[rank].error


def _ends_after_monitored(ranks: Ranks) -> list[float]:
    began = time.monotonic()
    if ranks.rank == 0:
        with pytest.raises(dist.DistBackendError, match="Rank 1 failed"):
            dist.monitored_barrier(timeout=timedelta(milliseconds=300))
        with pytest.raises(dist.DistBackendError, match="Timed out waiting"):
            dist.irecv(torch.zeros(3), 1).wait(timedelta(milliseconds=200))
        dist.destroy_process_group()
        ranks.started("gone")
    else:
        ranks.wait_for("gone", [0])
        dist.destroy_process_group()
    return [time.monotonic() - began]


@since_2_14
def test_what_never_came_does_not_hold_up_the_end() -> None:
    # The group's own time-out is a minute.
    for seconds in launch(_ends_after_monitored, 2, destroy=False):
        assert seconds[0] < 30


def _monitored_again(ranks: Ranks) -> None:
    if ranks.rank == 0:
        with pytest.raises(dist.DistBackendError, match="Rank 1 failed"):
            dist.monitored_barrier(timeout=timedelta(milliseconds=300))
        ranks.started("late")
    else:
        ranks.wait_for("late", [0])
        with pytest.raises(dist.DistBackendError, match="Rank 0 failed"):
            dist.monitored_barrier(timeout=timedelta(milliseconds=300))
    for _ in range(3):
        dist.monitored_barrier(timeout=timedelta(seconds=60))


@since_2_14
def test_monitored_barrier_after_one_that_failed() -> None:
    launch(_monitored_again, 2)


# -- abort() ---------------------------------------------------------------


def _abort(ranks: Ranks) -> None:
    dist.barrier()
    if ranks.rank == 1:
        dist.group.WORLD.abort()
    while True:
        dist.all_reduce(torch.ones(10))


def test_abort_ends_the_job_on_all_ranks() -> None:
    outcomes = run(_abort, 3, destroy=False)
    for outcome in outcomes:
        assert outcome.error_type == "DistBackendError", str(outcome)
        assert "aborted by rank 1" in outcome.error, outcome.error


def _abort_under_way(ranks: Ranks) -> None:
    if ranks.rank == 0:
        work = dist.all_reduce(torch.ones(10), async_op=True)
        future = work.get_future()
        dist.group.WORLD.abort()
        with pytest.raises(dist.DistBackendError, match="aborted"):
            work.wait()
        with pytest.raises(Exception, match="aborted"):
            future.wait()
        assert work.is_completed() and not work.is_success()


def test_abort_ends_what_is_under_way() -> None:
    outcomes = run(_abort_under_way, 2, destroy=False)
    assert outcomes[0].ok, str(outcomes[0])
