"""What ranks import: the process that they are forked from has done it."""

import torch._dynamo  # noqa: F401  DDP and tensors ask for it.
import torch.distributed._functional_collectives  # noqa: F401
import torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook  # noqa: F401
import torch.distributed.algorithms.join  # noqa: F401
import torch.distributed.fsdp  # noqa: F401
import torch.distributed.optim  # noqa: F401
import torch.distributed.tensor  # noqa: F401
import torch.nn.parallel  # noqa: F401
import torch.testing  # noqa: F401

import harness  # noqa: F401
