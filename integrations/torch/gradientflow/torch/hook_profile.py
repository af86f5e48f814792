"""GRADIENTFLOW_PROFILE of a DistributedDataParallel with a hook."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradientflow.torch import _C

__all__ = ["file_of", "open_profile", "watch_for_missing"]

_profiled: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def file_of() -> str | None:
    """Returns the file that the environment asks for, if any."""
    return os.environ.get("GRADIENTFLOW_PROFILE") or None


def open_profile(
    ddp: DistributedDataParallel,
    names: Sequence[str],
    parameters: Sequence[torch.nn.Parameter],
) -> _C.HookProfile | None:
    """Begins the profile that the environment asks for; None if it does not.

    A collective if it does. The file is complete when ``ddp`` is dropped, or at
    the end of the program.

    Raises:
        ValueError: on all ranks, if one of them cannot make a profile.
    """
    if file_of() is None:
        return None
    profile: _C.HookProfile | None = None
    error = ""
    try:
        profile = _C.HookProfile.open(
            ddp.process_group, names, parameters, _device_of(parameters)
        )
    except ValueError as refused:
        error = str(refused)
    errors: list[str] = [""] * ddp.process_group.size()
    dist.all_gather_object(errors, error, group=ddp.process_group)
    for rank, text in enumerate(errors):
        if text:
            raise ValueError(f"rank {rank}: {text}")
    if profile is not None:
        _follow_updates(ddp, profile, parameters)
        _profiled.add(ddp)
    return profile


def watch_for_missing() -> None:
    """Warns, once, if the environment asks for a profile and the first
    DistributedDataParallel that trains has none."""
    if file_of() is None:
        return

    def look(module: torch.nn.Module, _: object) -> None:
        if not isinstance(module, DistributedDataParallel):
            return
        if not (module.training and torch.is_grad_enabled()):
            return
        handle.remove()
        if module in _profiled or module.process_group.rank() != 0:
            return
        warnings.warn(
            "GRADIENTFLOW_PROFILE: no profile is written of a "
            "DistributedDataParallel without a hook of gradientflow.torch. Call "
            "gradientflow.torch.register(ddp, 'fp16') before training, or use "
            "gradientflow.torch.DataParallel",
            stacklevel=2,
        )

    handle = register_module_forward_pre_hook(look)


def _device_of(parameters: Sequence[torch.nn.Parameter]) -> str:
    for parameter in parameters:
        if parameter.device.type == "cuda":
            return torch.cuda.get_device_name(parameter.device)
        return str(parameter.device)
    return "cpu"


def _follow_updates(
    ddp: DistributedDataParallel,
    profile: _C.HookProfile,
    parameters: Sequence[torch.nn.Parameter],
) -> None:
    """Tells the profile of the steps of optimisers that update `parameters`."""
    ours = {id(parameter) for parameter in parameters}

    def updates(optimizer: torch.optim.Optimizer) -> bool:
        return any(
            id(parameter) in ours
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def begins(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if updates(optimizer):
            profile.optimizer_begins()

    def ends(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if updates(optimizer):
            profile.optimizer_ends()

    handles = [
        register_optimizer_step_pre_hook(begins),
        register_optimizer_step_post_hook(ends),
    ]

    def close() -> None:
        for handle in handles:
            handle.remove()
        profile.close()

    weakref.finalize(ddp, close)
