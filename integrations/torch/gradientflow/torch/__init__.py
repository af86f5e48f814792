"""GradientFlow for PyTorch.

Importing this registers the torch.distributed backend "gradientflow". For
DistributedDataParallel over any backend: :func:`register` a communication hook;
without it: :class:`DataParallel`, with the optimisers that know what it sends,
:class:`SGD` and :class:`LARS`.
"""

from __future__ import annotations

# Loads torch's libraries, which the extension needs.
import torch as _torch  # noqa: F401

from gradientflow.torch import backend as _backend
from gradientflow.torch.data_parallel import DataParallel
from gradientflow.torch.hook import CommHook, register
from gradientflow.torch.optim import LARS, SGD

__all__ = ["CommHook", "DataParallel", "LARS", "SGD", "register"]

_backend.register()
