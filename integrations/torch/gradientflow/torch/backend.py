"""The torch.distributed backend "gradientflow".

``torch.distributed.init_process_group("gradientflow")`` uses it for all
devices; ``"cpu:gradientflow,cuda:nccl"`` uses it for one. Settings are the
GRADIENTFLOW_* variables of the environment, except that torch supplies rank,
size and the place where ranks meet; ``timeout`` is the time-out of collectives
and of joining.

The groups of a job share one session: its links, shared memory and thread. A
group has a session of its own if the default group uses another backend.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable

import torch
import torch.distributed as dist

from gradientflow.torch import _C

__all__ = ["NAME", "register"]

NAME = "gradientflow"
_DEVICES = ["cpu", "cuda"]


_registered = False


def register() -> None:
    """Registers the backend with torch.distributed; may be called more than
    once."""
    global _registered
    if _registered:
        return
    _registered = True
    dist.Backend.register_backend(
        NAME, _create, extended_api=True, devices=_DEVICES
    )
    # At exit all sessions close: peers see a normal end and not a death, even
    # if nobody destroyed the process group, and no callback runs in a dead
    # interpreter.
    atexit.register(_C.close_all)


def _create(options: object, backend_options: object | None) -> _C.Backend:
    """Makes one group's backend; called by torch on the group's ranks only.

    Args:
        options: torch's DistributedBackendOptions.
        backend_options: the caller's ``pg_options``, which are ignored.
    """
    del backend_options
    ranks = list(options.global_ranks_in_group)
    ours = _C.Backend.Options(options.timeout, options.group_id, ranks)
    parent = _default_backend()
    if parent is not None and ranks:
        return parent.subgroup(options.store, ranks, ours)
    return _C.Backend.open(
        options.store, options.group_rank, options.group_size, ours
    )


def _default_backend() -> _C.Backend | None:
    """Returns the default group's backend if it is GradientFlow's, else None."""
    if not dist.is_initialized():
        return None
    group = dist.group.WORLD
    for device in _device_types(group):
        backend = group._get_backend(torch.device(device))
        # With TORCH_DISTRIBUTED_DEBUG=DETAIL torch wraps the backend.
        backend = getattr(backend, "wrapped_pg", backend)
        if isinstance(backend, _C.Backend):
            return backend
    return None


def _device_types(group: dist.ProcessGroup) -> Iterable[str]:
    return (device.type for device in group._device_types)
