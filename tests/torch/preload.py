"""Imports for the ranks, in the process from which they are forked."""

import contextlib
import importlib
import pathlib

import torch._dynamo  # Used by DDP and tensors.
import torch.distributed._functional_collectives  # noqa: F401
import torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook  # noqa: F401
import torch.distributed.algorithms.join  # noqa: F401
import torch.distributed.fsdp  # noqa: F401
import torch.distributed.optim  # noqa: F401
import torch.distributed.tensor  # noqa: F401
import torch.nn.parallel  # noqa: F401
import torch.testing  # noqa: F401

import harness  # noqa: F401

# What ranks run is written in the tests' modules, and these import pytest: a
# tenth of a second for every rank. Pytest reports a module with an error.
for _path in pathlib.Path(__file__).parent.glob("test_*.py"):
    with contextlib.suppress(Exception):
        importlib.import_module(_path.stem)
