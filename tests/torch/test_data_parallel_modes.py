"""DataParallel: accumulation, branches, shared parameters, clipping."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import (
    Branches,
    Given,
    check_mean,
    flat,
    loss_of,
    net,
    random_inputs,
)


def accumulate(ranks: Ranks, set_to_none: bool) -> None:
    model, plain = gft.DataParallel(net()), net()
    for step in range(3):
        model.zero_grad(set_to_none=set_to_none)
        plain.zero_grad()
        for part in range(3):
            loss_of(plain, 3 * step + part, ranks.rank).backward()
        with model.no_sync():
            loss_of(model, 3 * step, ranks.rank).backward()
            with model.no_sync():
                loss_of(model, 3 * step + 1, ranks.rank).backward()
            local = [p.grad.clone() for p in model.parameters()]
        assert model.stats["step"] == max(step - 1, 0)
        loss_of(model, 3 * step + 2, ranks.rank).backward()
        assert not torch.equal(local[0], model.module[0].weight.grad)
        check_mean(ranks, model, plain)


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_no_sync_adds_up(size: int, set_to_none: bool) -> None:
    launch(accumulate, size, set_to_none, backend="gloo")


def accumulate_means(ranks: Ranks) -> None:
    """Without zero_grad() means add up, as under DDP."""
    model, plain = gft.DataParallel(net()), net()
    for step in range(3):
        loss_of(model, step, ranks.rank).backward()
        loss_of(plain, step, ranks.rank).backward()
        check_mean(ranks, model, plain)


def test_gradients_that_are_kept_add_up() -> None:
    launch(accumulate_means, 3, backend="gloo")


def branches(ranks: Ranks) -> None:
    torch.manual_seed(3)
    plain = Branches()
    model = gft.DataParallel(Branches())
    model.module.load_state_dict(plain.state_dict())
    for step, left in enumerate([True, False, ranks.rank == 0, ranks.rank != 0]):
        generator = torch.Generator().manual_seed(10 * step + ranks.rank)
        inputs = torch.randn((4, 6), generator=generator)
        for each in (plain, model):
            each.zero_grad()
            each(inputs, left).backward()
        check_mean(ranks, model, plain)


@pytest.mark.parametrize("size", [2, 3])
def test_unused_parameters(size: int) -> None:
    launch(branches, size, backend="gloo")


class Shared(torch.nn.Module):
    """One weight in two places, used three times; one layer frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = torch.nn.Linear(6, 6)
        self.second = torch.nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.frozen = torch.nn.Linear(6, 6)
        self.frozen.requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.frozen(self.first(inputs)).tanh()
        return (self.second(hidden) @ self.first.weight).square().sum()


def shared(ranks: Ranks) -> None:
    plain, model = Shared(), gft.DataParallel(Shared())
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + ranks.rank)
        inputs = torch.randn((4, 6), generator=generator)
        for each in (plain, model):
            each.zero_grad()
            each(inputs).backward()
        assert model.module.frozen.weight.grad is None
        assert model.module.second.weight.grad is model.module.first.weight.grad
        for name, p in plain.named_parameters():
            if not p.requires_grad:
                continue
            mean = p.grad.clone()
            dist.all_reduce(mean)
            got = dict(model.module.named_parameters())[name].grad
            torch.testing.assert_close(got, mean / ranks.size, atol=1e-4, rtol=1e-5)


def test_shared_and_frozen_parameters() -> None:
    launch(shared, 2, backend="gloo")


def clip(ranks: Ranks) -> tuple[float, float]:
    model = gft.DataParallel(net())
    loss_of(model, 0, ranks.rank).backward()
    before = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    after = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
    return float(before), float(after)


def test_clipping() -> None:
    results = launch(clip, 3)
    assert len(set(results)) == 1
    assert results[0][0] > 1e-2
    assert results[0][1] == pytest.approx(1e-3, rel=1e-3)


def gradients_outlive(ranks: Ranks) -> None:
    shapes = {"a": (50_000,)}
    model = gft.DataParallel(Given(shapes))
    inputs = [random_inputs(shapes, 0, r) for r in range(ranks.size)]
    model(inputs[ranks.rank]).backward()
    held = model.module.a.grad
    model.close()
    mean = sum(flat(each)["a"] for each in inputs) / ranks.size
    np.testing.assert_allclose(held.numpy(), mean, atol=1e-5)
    np.testing.assert_allclose(model.module.a.grad.numpy(), mean, atol=1e-5)
    assert held.data_ptr() != model.module.a.grad.data_ptr()


def test_gradients_outlive_the_session() -> None:
    launch(gradients_outlive, 2, backend="gloo")
