"""Checks what a configuration does to gradients, before it is timed."""

import torch
import torch.distributed as dist
from configurations import Configuration, Trainee
from workloads import Workload

# The steps of a sparse configuration: it may send everything in the first, and
# DDP changes its buckets after it.
SPARSE_STEPS = 4


class WrongResult(Exception):
    """A configuration's gradients are wrong."""


def mean_gradients(workload: Workload) -> list[torch.Tensor]:
    """Computes the mean over the ranks, by Gloo in float64."""
    _backward(workload, workload.model)
    means = []
    for parameter in workload.model.parameters():
        mean = parameter.grad.double().cpu()
        dist.all_reduce(mean)
        means.append(mean.div_(dist.get_world_size()).float())
        parameter.grad = None
    return means


def check(configuration: Configuration, trainee: Trainee, workload: Workload,
          means: list[torch.Tensor]) -> None:
    """Checks that every step turns the gradients of `trainee`, a wrapper of
    workload.model, into `means`, with the same bits on all ranks.

    A sparse configuration takes some steps with the same gradients. Each gradient
    must then be zero, or the mean of what added up in one or more steps; and
    something must have been kept back.

    Raises WrongResult on every rank, or on none."""
    steps = SPARSE_STEPS if configuration.sparse else 1
    for _ in range(steps):
        trainee.optimizer.zero_grad()
        _backward(workload, trainee.model)
    gradients = [p.grad.detach().cpu() for p in workload.model.parameters()]
    problem = ""
    kept = 0
    for i, (got, mean) in enumerate(zip(gradients, means)):
        off = (got - mean).abs()
        for added_up in range(2, steps + 1):
            off = torch.minimum(off, (got - added_up * mean).abs())
        if configuration.sparse:
            off[got == 0] = 0
            kept += int(((got == 0) & (mean != 0)).sum())
        most = steps * float(mean.abs().max())
        worst = float(off.max())
        if not worst <= configuration.tolerance(most):
            problem = problem or (
                f"gradient {i} of shape {list(got.shape)} is off by "
                f"{worst:.3g} where {most:.3g} is the largest")
    if configuration.sparse and not kept:
        problem = problem or f"kept nothing back in {SPARSE_STEPS} steps"
    if not same_everywhere(gradients):
        problem = problem or "ranks have different gradients"
    answers: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(answers, problem)
    for rank, answer in enumerate(answers):
        if answer:
            raise WrongResult(f"{configuration.name}: rank {rank}: {answer}")


def _backward(workload: Workload, model: torch.nn.Module) -> None:
    torch.manual_seed(7)  # Dropout: the same units each time.
    workload.loss(model).backward()


def same_everywhere(tensors: list[torch.Tensor]) -> bool:
    """Whether all ranks have the same bits, by sums of them."""
    mine = torch.stack([t.contiguous().view(-1).view(torch.int32).sum(
        dtype=torch.int64) for t in tensors])
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    return all(torch.equal(mine, other) for other in all_ranks)
