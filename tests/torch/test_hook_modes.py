"""Hooks under DDP's modes: unused parameters, static graph, no_sync, join."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import (
    Branches,
    Given,
    batch,
    flat,
    net,
    random_inputs,
    with_csc,
)

BACKENDS = ["gloo", "gradientflow"]
HOOKS = ["fp16", "csc"]


def hooked(
    module: torch.nn.Module, compression: str, sparsity: float = 0.0, **modes: object
) -> DistributedDataParallel:
    """Returns a DDP with a hook; with sparsity 0, CSC gives exact means."""
    model = DistributedDataParallel(module, bucket_cap_mb=2e-4, **modes)
    csc = with_csc(
        compression, sparsity=sparsity, chunk_elements=7, wire_dtype="fp32"
    )
    gft.register(model, **csc)
    return model


def gradients(model: torch.nn.Module) -> dict[str, np.ndarray | None]:
    return {
        name: None if p.grad is None else p.grad.double().numpy().copy()
        for name, p in model.named_parameters()
    }


def mean_of(ranks: Ranks, local: dict[str, np.ndarray | None]) -> dict:
    """Computes means by an exchange that does not use hooks."""
    means = {}
    for name, value in local.items():
        used = torch.tensor([float(value is not None)])
        dist.all_reduce(used)
        if not used.item():
            means[name] = None
    for name, value in local.items():
        if name in means:
            continue
        shape = torch.tensor(0.0) if value is None else torch.from_numpy(value)
        sizes = torch.tensor([shape.numel() if value is not None else 0])
        dist.all_reduce(sizes, dist.ReduceOp.MAX)
        total = torch.zeros(int(sizes), dtype=torch.float64)
        if value is not None:
            total += shape.flatten().to(total.device)
        dist.all_reduce(total)
        means[name] = (total / ranks.size).numpy()
    return means


def check(model: torch.nn.Module, means: dict, atol: float) -> None:
    for name, got in gradients(model).items():
        expected = means[name]
        assert (got is None) == (expected is None), name
        if expected is not None:
            np.testing.assert_allclose(got.ravel(), expected, atol=atol, err_msg=name)


def unused(ranks: Ranks, compression: str, as_view: bool) -> None:
    torch.manual_seed(3)
    plain = Branches()
    model = hooked(
        Branches(),
        compression,
        find_unused_parameters=True,
        gradient_as_bucket_view=as_view,
    )
    model.module.load_state_dict(plain.state_dict())
    # Left on all ranks, right on all ranks, then each on some ranks.
    for step, left in enumerate([True, False, ranks.rank == 0, ranks.rank != 0]):
        inputs = torch.randn(
            (4, 6), generator=torch.Generator().manual_seed(10 * step + ranks.rank)
        )
        plain.zero_grad()
        plain(inputs, left).backward()
        model.zero_grad()
        model(inputs, left).backward()
        means = mean_of(ranks, gradients(plain))
        check(model.module, means, 1e-5 if compression == "csc" else 2e-2)


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("compression", HOOKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_unused_parameters(backend: str, compression: str, as_view: bool) -> None:
    launch(unused, 2, compression, as_view, backend=backend)
    launch(unused, 3, compression, as_view, backend=backend)


def static(ranks: Ranks, compression: str) -> None:
    torch.manual_seed(3)
    plain = Branches()
    model = hooked(Branches(), compression, static_graph=True)
    model.module.load_state_dict(plain.state_dict())
    for step in range(4):
        inputs = torch.randn(
            (4, 6), generator=torch.Generator().manual_seed(10 * step + ranks.rank)
        )
        plain.zero_grad()
        plain(inputs, True).backward()
        model.zero_grad()
        model(inputs, True).backward()
        means = mean_of(ranks, gradients(plain))
        check(model.module, means, 1e-5 if compression == "csc" else 2e-2)


@pytest.mark.parametrize("compression", HOOKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_static_graph(backend: str, compression: str) -> None:
    launch(static, 2, compression, backend=backend)


def accumulate(ranks: Ranks, compression: str, as_view: bool) -> None:
    model = hooked(net(), compression, gradient_as_bucket_view=as_view)
    plain = net()

    def loss(of: torch.nn.Module, step: int) -> torch.Tensor:
        inputs, targets = batch(step, ranks.rank)
        return torch.nn.functional.mse_loss(of(inputs), targets)

    for step in range(3):
        model.zero_grad()
        plain.zero_grad()
        for part in range(3):
            loss(plain, 3 * step + part).backward()
        with model.no_sync():
            loss(model, 3 * step).backward()
            loss(model, 3 * step + 1).backward()
        loss(model, 3 * step + 2).backward()
        means = mean_of(ranks, gradients(plain))
        check(model.module, means, 1e-5 if compression == "csc" else 2e-2)


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("compression", HOOKS)
def test_no_sync(compression: str, as_view: bool) -> None:
    launch(accumulate, 2, compression, as_view)


def uneven(ranks: Ranks, compression: str) -> dict[str, float]:
    """Rank r has r + 2 inputs. What is given arrives, in the means over all
    ranks."""
    shapes = {"a": (40,), "b": (9, 5), "c": (33,)}
    model = DistributedDataParallel(Given(shapes), bucket_cap_mb=1e-4)
    csc = with_csc(compression, sparsity=0.6, chunk_elements=8, wire_dtype="fp32")
    hook = gft.register(model, **csc)
    given = {name: np.zeros(int(np.prod(s))) for name, s in shapes.items()}
    taken = {name: np.zeros_like(value) for name, value in given.items()}
    steps = ranks.rank + 2
    with Join([model]):
        for step in range(steps):
            inputs = random_inputs(shapes, step, ranks.rank)
            model.zero_grad()
            model(inputs).backward()
            for name, value in flat(inputs).items():
                given[name] += value
            for name, p in model.module.named_parameters():
                taken[name] += p.grad.double().flatten().numpy()
    assert hook.stats()["steps"] == ranks.size + 1
    # The last rank took part in every step: it has seen everything that was
    # sent.
    kept = hook.state_dict().get("residual", {})
    worst = {}
    for name in shapes:
        sent = given[name] - (kept[name].double().flatten().numpy() if kept else 0)
        total = torch.from_numpy(sent)
        dist.all_reduce(total)
        seen = torch.from_numpy(taken[name])
        dist.broadcast(seen, ranks.size - 1)
        worst[name] = float((total / ranks.size - seen).abs().max())
    return worst


@pytest.mark.parametrize("compression", HOOKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_may_run_out_of_inputs(backend: str, compression: str) -> None:
    for worst in launch(uneven, 3, compression, backend=backend):
        limit = 1e-5 if compression == "csc" else 2e-2
        assert max(worst.values()) < limit


def clip(ranks: Ranks) -> tuple[float, float]:
    """Clipping sees the norm of the mean, and clips the mean."""
    model = hooked(net(), "csc", sparsity=0.5)
    for step in range(3):
        inputs, targets = batch(step, ranks.rank)
        model.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
    before = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    after = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
    return float(before), float(after)


def test_clipping() -> None:
    results = launch(clip, 3)
    assert len(set(results)) == 1
    before, after = results[0]
    assert before > 1e-2
    assert after == pytest.approx(1e-3, rel=1e-3)
