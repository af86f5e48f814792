"""Imports for the ranks, in the process from which they are forked."""

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
