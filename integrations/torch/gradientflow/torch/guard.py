"""Refuses optimisers that would lose what a decaying residual keeps back."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

__all__ = ["guard", "release"]


# By model: the ids of its parameters, which live as long as the model.
_models: weakref.WeakKeyDictionary[torch.nn.Module, set[int]] = (
    weakref.WeakKeyDictionary()
)
_watching = False


def guard(
    model: torch.nn.Module, parameters: Iterable[torch.nn.Parameter]
) -> None:
    """Lets only optimisers with a true ``chunk_aware`` step on ``parameters``."""
    global _watching
    _models[model] = {id(parameter) for parameter in parameters}
    if not _watching:
        # torch reports an optimiser when it steps, not when it is built.
        register_optimizer_step_pre_hook(_check)
        _watching = True


def release(model: torch.nn.Module) -> None:
    """Lets any optimiser step on the parameters of ``model`` again."""
    _models.pop(model, None)


def _check(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if not _models or getattr(optimizer, "chunk_aware", False):
        return
    guarded = set().union(*_models.values())
    for group in optimizer.param_groups:
        if any(id(parameter) in guarded for parameter in group["params"]):
            raise ValueError(
                f"{type(optimizer).__name__} would lose what residual='momentum'"
                " keeps back: use gradientflow.torch.SGD or LARS, or a DataParallel"
                " with residual='plain'"
            )
