"""DataParallel: gradients whose memory somebody replaces."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import check_mean, loss_of, net


def clamp(model: gft.DataParallel) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.data = parameter.grad.data.clamp(-1e-3, 1e-3)


def share_gradients(model: gft.DataParallel) -> None:
    """As putting them into a queue to another process does."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.share_memory_()


def share_model(model: gft.DataParallel) -> None:
    model.module.share_memory()


def there_and_back(model: gft.DataParallel) -> None:
    weights = [p.detach().clone() for p in model.parameters()]
    model.double()
    model.float()
    for parameter, weight in zip(model.parameters(), weights):
        assert torch.equal(parameter, weight)


CHANGES: list[Callable[[gft.DataParallel], None]] = [
    clamp, share_gradients, share_model, there_and_back]


def change_between_steps(ranks: Ranks, change: int, set_to_none: bool) -> None:
    model, plain = gft.DataParallel(net()), net()
    for step in range(4):
        for each in (model, plain):
            each.zero_grad(set_to_none=set_to_none)
            loss_of(each, step, ranks.rank).backward()
        check_mean(ranks, model, plain)
        CHANGES[change](model)


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("change", range(len(CHANGES)),
                         ids=[change.__name__ for change in CHANGES])
def test_other_memory_is_taken_in(change: int, set_to_none: bool) -> None:
    launch(change_between_steps, 3, change, set_to_none, backend="gloo")


def step_on_clamped(ranks: Ranks) -> None:
    model = gft.DataParallel(net())
    optimizer = gft.SGD(model, lr=1.0)
    loss_of(model, 0, ranks.rank).backward()
    before = [p.detach().clone() for p in model.parameters()]
    clamp(model)
    optimizer.step()
    for parameter, was in zip(model.parameters(), before):
        moved = (parameter - was).abs().max()
        assert 0 < moved <= 1.01e-3


def test_our_optimizer_takes_what_the_gradient_is() -> None:
    launch(step_on_clamped, 2, backend="gloo")
