"""DataParallel uses the time-out of its process group."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import gradientflow.torch as gft
from harness import Ranks, launch, run
from parallel_models import batch, net


def _step(model: gft.DataParallel, ranks: Ranks) -> None:
    inputs, targets = batch(0, ranks.rank)
    torch.nn.functional.mse_loss(model(inputs), targets).backward()


def _one_is_late(ranks: Ranks, way: str, seconds: float) -> None:
    group = None
    if way == "new_group":
        group = dist.new_group(timeout=timedelta(seconds=seconds))
    options = {"timeout_seconds": str(seconds)} if way == "options" else None
    model = gft.DataParallel(net(ranks.rank), process_group=group, options=options)
    _step(model, ranks)
    if ranks.rank == 1:
        ranks.wait_for("error", [0])
        return
    began = time.monotonic()
    try:
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            _step(model, ranks)
        assert 0.8 * seconds < time.monotonic() - began < 20
    finally:
        ranks.started("error")


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
@pytest.mark.parametrize("backend", ["gradientflow", "gloo"])
def test_a_rank_that_is_late_for_a_step(fabric: str, backend: str) -> None:
    env = {"GRADIENTFLOW_FABRIC": fabric}
    outcomes = run(
        _one_is_late, 2, "init", 4.0, backend=backend, timeout=4.0, destroy=False, env=env
    )
    assert outcomes[0].ok, str(outcomes[0])


@pytest.mark.parametrize("way", ["new_group", "options"])
def test_other_ways_to_set_it(way: str) -> None:
    outcomes = run(_one_is_late, 2, way, 2.0, destroy=False)
    assert outcomes[0].ok, str(outcomes[0])


def test_under_the_debugging_wrapper() -> None:
    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    outcomes = run(_one_is_late, 2, "init", 4.0, timeout=4.0, destroy=False, env=env)
    assert outcomes[0].ok, str(outcomes[0])


def _late_but_in_time(ranks: Ranks) -> None:
    model = gft.DataParallel(net(ranks.rank))
    if ranks.rank == 1:
        time.sleep(2.5)
    _step(model, ranks)


def test_a_rank_that_is_late_within_the_time_out() -> None:
    launch(_late_but_in_time, 2, env={"GRADIENTFLOW_TIMEOUT_SECONDS": "1"})


def _fails_alone(ranks: Ranks) -> float:
    model = gft.DataParallel(torch.nn.ModuleList(net() for _ in range(2)))
    model.module.forward = model.module[0].forward
    _step(model, ranks)
    # What rank 1 fails in is the second step, on all ranks.
    ranks.started("second step")
    ranks.wait_for("second step", range(ranks.size))
    if ranks.rank == 1:
        bias = model.module[1][0].bias
        bias.grad = torch.zeros_like(bias).to_sparse()
    error = ValueError if ranks.rank == 1 else dist.DistBackendError
    began = time.monotonic()
    with pytest.raises(error, match="has layout Sparse, expected a dense one"):
        _step(model, ranks)
    took = time.monotonic() - began
    ranks.started("error")
    # The others must hear it from the time-out, not from a rank that ends.
    ranks.wait_for("error", range(ranks.size))
    return took


def test_a_step_that_fails_on_one_rank_fails_on_all() -> None:
    outcomes = run(_fails_alone, 3, timeout=40.0, destroy=False)
    assert all(outcome.ok for outcome in outcomes), "\n".join(map(str, outcomes))
    assert max(outcome.value for outcome in outcomes) < 20
