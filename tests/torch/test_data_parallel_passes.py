"""DataParallel: which backward passes it accepts, and how they may fail."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import batch, check_mean, loss_of, net


def passes(ranks: Ranks) -> None:
    """Two forward passes, one backward; one forward pass, two backward."""
    model, plain = gft.DataParallel(net()), net()
    for each in (model, plain):
        first, second = (loss_of(each, step, ranks.rank) for step in (0, 1))
        (first + 3 * second).backward()
    check_mean(ranks, model, plain)
    for each in (model, plain):
        each.zero_grad()
        loss = loss_of(each, 2, ranks.rank)
        loss.backward(retain_graph=True)
        loss.backward()
    check_mean(ranks, model, plain)
    # Gradients of gradients come from torch.autograd.grad(), as under DDP.
    for each in (model, plain):
        each.zero_grad()
        inputs = batch(3, ranks.rank)[0].requires_grad_()
        (gradient,) = torch.autograd.grad(
            each(inputs).square().sum(), inputs, create_graph=True
        )
        gradient.square().sum().backward()
    check_mean(ranks, model, plain)


def saliency(ranks: Ranks) -> None:
    """torch.autograd.grad() of the inputs, by one rank alone, is no step."""
    model, plain = gft.DataParallel(net()), net()
    if ranks.rank == 0:
        inputs = batch(3, 0)[0].requires_grad_()
        (ours,) = torch.autograd.grad(model(inputs).sum(), inputs)
        (theirs,) = torch.autograd.grad(plain(inputs).sum(), inputs)
        torch.testing.assert_close(ours, theirs)
        assert all(p.grad is None for p in model.parameters())
    for each in (model, plain):
        loss_of(each, 0, ranks.rank).backward()
    check_mean(ranks, model, plain)
    assert model.stats["step"] == 0
    # A gradient of some parameters is no step either; accumulating into some
    # is.
    for each in (model, plain):
        each.zero_grad()
        some = list(each.parameters())[:2]
        torch.autograd.grad(loss_of(each, 1, ranks.rank), some)
        loss_of(each, 1, ranks.rank).backward(inputs=some)
    check_mean(ranks, model, plain)
    assert model.stats["step"] == 1


def test_only_gradients_of_parameters_are_steps() -> None:
    launch(saliency, 2, backend="gloo")


def test_any_number_of_passes() -> None:
    launch(passes, 2, backend="gloo")


class Checkpointed(torch.nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.net = net()
        self.reentrant = reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs = inputs.requires_grad_()
        for layer in self.net:
            inputs = checkpoint(layer, inputs, use_reentrant=self.reentrant)
        return inputs


def checkpointed(ranks: Ranks, reentrant: bool) -> None:
    model, plain = gft.DataParallel(Checkpointed(reentrant)), net()
    for step in range(3):
        inputs, targets = batch(step, ranks.rank)
        model.zero_grad()
        output = model(inputs.clone())
        torch.nn.functional.mse_loss(output, targets).backward()
        assert model.stats["step"] == step, "expected one step per backward"
        plain.zero_grad()
        torch.nn.functional.mse_loss(plain(inputs), targets).backward()
        check_mean(ranks, model, plain)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers(reentrant: bool) -> None:
    launch(checkpointed, 2, reentrant, backend="gloo")


class Twice(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        once = checkpoint(self.layer, inputs.requires_grad_(), use_reentrant=True)
        return checkpoint(self.layer, once, use_reentrant=True).sum()


def twice(ranks: Ranks) -> None:
    model = gft.DataParallel(Twice())
    loss = model(torch.randn(3, 6))
    with pytest.raises(RuntimeError, match="layer.* got a second gradient.*reentrant"):
        loss.backward()


def test_a_second_gradient_in_one_step_is_refused() -> None:
    launch(twice, 1)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor, fail: bool) -> torch.Tensor:
        ctx.fail = fail
        return x * 1.0

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple:
        if ctx.fail:
            raise ArithmeticError("as the test wants it")
        return gradient, None


class Failing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.second = torch.nn.Linear(6, 6)

    def forward(self, inputs: torch.Tensor, fail: bool) -> torch.Tensor:
        return self.second(Fails.apply(self.first(inputs), fail)).sum()


def fail_midway(ranks: Ranks) -> str:
    model = gft.DataParallel(Failing())
    inputs = torch.randn(3, 6)
    model(inputs, False).backward()
    model.zero_grad()
    # When the job is given up it ends at once, even for a rank in that step.
    dist.barrier()
    if ranks.rank == 1:
        with pytest.raises(ArithmeticError, match="as the test wants"):
            model(inputs, True).backward()
        with pytest.raises(dist.DistBackendError, match="no more steps") as caught:
            model(inputs, False)
    else:
        with pytest.raises(dist.DistBackendError) as caught:
            model(inputs, False).backward()
    again = pytest.raises(dist.DistBackendError)
    with again:
        model(inputs, False).backward()
    model.close()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    return str(caught.value)


def test_a_backward_that_raises_ends_the_job_on_all_ranks() -> None:
    for text in launch(fail_midway, 3, backend="gloo"):
        assert "rank 1: backward of step 1 raised an error midway" in text
        assert "2 of 4 gradients" in text


def outputs(ranks: Ranks) -> None:
    """Whatever a model returns, one backward pass is one step."""

    class Wrapped(torch.nn.Module):
        def __init__(self, wrap: object) -> None:
            super().__init__()
            self.net = net()
            self.wrap = wrap

        def forward(self, inputs: torch.Tensor) -> object:
            return self.wrap(self.net(inputs))

    class Opaque:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

    plain = net()
    torch.nn.functional.mse_loss(
        plain(batch(0, ranks.rank)[0]), batch(0, 0)[1]
    ).backward()
    for wrap, unwrap in (
        (lambda t: {"a": [t, None], "b": 1}, lambda o: o["a"][0]),
        (lambda t: (t.detach(), t), lambda o: o[1]),
        (Opaque, lambda o: o.tensor),
    ):
        model = gft.DataParallel(Wrapped(wrap))
        output = unwrap(model(batch(0, ranks.rank)[0]))
        torch.nn.functional.mse_loss(output, batch(0, 0)[1]).backward()
        assert model.stats["step"] == 0
        check_mean(ranks, model, plain)


def test_any_output() -> None:
    launch(outputs, 2, backend="gloo")


def user_hooks(ranks: Ranks) -> None:
    """Users' hooks, on tensors and after accumulation, do not interfere."""
    model, plain = gft.DataParallel(net()), net()
    seen = []
    model.module[0].weight.register_post_accumulate_grad_hook(
        lambda p: seen.append(p.grad.clone())
    )
    model.module[0].weight.register_hook(lambda g: 2 * g)
    plain[0].weight.register_hook(lambda g: 2 * g)
    for each in (model, plain):
        loss_of(each, 0, ranks.rank).backward()
    torch.testing.assert_close(seen[0], plain[0].weight.grad)
    check_mean(ranks, model, plain)


def test_hooks_of_users() -> None:
    launch(user_hooks, 2, backend="gloo")
