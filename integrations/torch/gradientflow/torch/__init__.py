"""GradientFlow for PyTorch.

Importing this module registers the torch.distributed backend "gradientflow".
:func:`register` adds a communication hook to DistributedDataParallel over any
backend. :class:`DataParallel` takes the place of DistributedDataParallel; its
optimisers, :class:`SGD` and :class:`LARS`, know what it sends.
"""

from __future__ import annotations

# This loads torch's libraries, which the extension needs.
import torch as _torch  # noqa: F401

from gradientflow.torch import backend as _backend
from gradientflow.torch import hook_profile as _hook_profile
from gradientflow.torch.data_parallel import DataParallel
from gradientflow.torch.hook import CommHook, register
from gradientflow.torch.optim import LARS, SGD

__all__ = ["CommHook", "DataParallel", "LARS", "SGD", "register"]

_backend.register()
_hook_profile.watch_for_missing()
