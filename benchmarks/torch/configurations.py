"""The ways to train that are compared, by name.

  none            one's own gradients, no communication: what a step costs alone
  ddp+none        DistributedDataParallel (DDP) with a hook that sends nothing:
                  its own copies into buckets and back
  gloo            DDP over Gloo
  gloo+fp16       the same with torch's fp16_compress_hook
  gloo+powersgd   the same with torch's powerSGD_hook, rank 1
  nccl            DDP over NCCL, on GPUs
  ours            DDP over the backend "gradientflow"
  ours+fp16       the same with gradientflow.torch.register(ddp, "fp16")
  ours+csc        the same with "csc"
  dp              gradientflow.torch.DataParallel with its SGD
  dp+fp16         the same with FP16 on the wire
  dp+csc          the same with coarse-grained sparse communication
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gradientflow.torch as gft  # Registers the backend, too.
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Recipe:
    """What is the same for every configuration."""

    lr: float = 1e-4
    momentum: float = 0.9
    sparsity: float = 0.85
    chunk_elements: int = 32000
    warmup_steps: int = 0
    # For DataParallel with CSC. With "momentum", for its own SGD, gradients
    # that are kept back are undefined; with "plain" they read as zero.
    residual: str = "momentum"

    def csc(self) -> dict[str, Any]:
        """Returns what both the hook and DataParallel take, with CSC only."""
        return {"sparsity": self.sparsity,
                "chunk_elements": self.chunk_elements,
                "warmup_steps": self.warmup_steps}


@dataclass
class Trainee:
    """A model that is trained in one of the ways, and its optimiser."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    close: Callable[[], None] = lambda: None

    def no_sync(self) -> contextlib.AbstractContextManager[Any]:
        return getattr(self.model, "no_sync", contextlib.nullcontext)()


@dataclass(frozen=True)
class Configuration:
    name: str
    backend: str | None  # torch.distributed's; None: no communication.
    build: Callable[[nn.Module, Any, Recipe], Trainee]
    ddp: bool = True  # DistributedDataParallel wraps the model.
    sends: bool = True
    half: bool = False  # 16 bits on the wire.
    sparse: bool = False

    def tolerance(self, largest: float) -> float:
        """Returns how far gradients up to `largest` may be from their exact
        mean."""
        # FP16: two roundings to 11 bits and a sum of such values; below its
        # normal numbers the spacing is 2^-24.
        return 2e-3 * largest + 2.0**-22 if self.half else 1e-5 * largest


def _torch_sgd(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    # One pass over memory, the fastest of torch.
    return torch.optim.SGD(model.parameters(), recipe.lr, recipe.momentum,
                           fused=True)


def _alone(model: nn.Module, group: Any, recipe: Recipe) -> Trainee:
    return Trainee(model, _torch_sgd(model, recipe))


def _ddp(register: Callable[[DistributedDataParallel, Any, Recipe], object] |
         None = None, **settings: Any) -> Callable[..., Trainee]:
    """DDP, with the hook that `register` gives it."""
    def build(model: nn.Module, group: Any, recipe: Recipe) -> Trainee:
        # torch's own defaults throughout. Weights are equal by construction.
        device = next(model.parameters()).device
        ddp = DistributedDataParallel(
            model, process_group=group, init_sync=False,
            device_ids=[device.index] if device.type == "cuda" else None,
            **settings)
        if register:
            register(ddp, group, recipe)
        return Trainee(ddp, _torch_sgd(model, recipe))
    return build


def _silent(ddp: DistributedDataParallel, group: Any, recipe: Recipe) -> None:
    def hook(_, bucket):  # type: ignore[no-untyped-def]  # torch looks.
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done
    ddp.register_comm_hook(None, hook)


def _torch_powersgd(ddp: DistributedDataParallel, group: Any,
                    recipe: Recipe) -> None:
    ddp.register_comm_hook(powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=1,
        # The least that torch accepts: buckets are rebuilt after the first
        # step.
        start_powerSGD_iter=max(2, recipe.warmup_steps)),
        powerSGD_hook.powerSGD_hook)


def _data_parallel(compression: str | None) -> Callable[..., Trainee]:
    def build(model: nn.Module, group: Any, recipe: Recipe) -> Trainee:
        csc: dict[str, Any] = {}
        if compression == "csc":
            csc = {**recipe.csc(), "residual": recipe.residual}
            if recipe.residual == "momentum":
                csc["momentum"] = recipe.momentum
        parallel = gft.DataParallel(model, process_group=group,
                                    compression=compression, **csc)
        return Trainee(parallel,
                       gft.SGD(parallel, recipe.lr, recipe.momentum),
                       parallel.close)
    return build


_LIST = (
    Configuration("none", None, _alone, ddp=False, sends=False),
    Configuration("ddp+none", "gloo", _ddp(_silent), sends=False),
    Configuration("gloo", "gloo", _ddp()),
    Configuration("gloo+fp16", "gloo", _ddp(
        lambda ddp, group, recipe: ddp.register_comm_hook(
            group, default_hooks.fp16_compress_hook)), half=True),
    # It sends everything in its first two steps, of which the first is
    # verified. One bucket for everything: with several, PowerSGD starts its
    # later allreduces as callbacks happen to run, in an order that differs
    # between ranks, and Gloo ends the job.
    Configuration("gloo+powersgd", "gloo",
                  _ddp(_torch_powersgd, bucket_cap_mb=1 << 20)),
    Configuration("nccl", "nccl", _ddp()),
    Configuration("ours", "gradientflow", _ddp()),
    Configuration("ours+fp16", "gradientflow", _ddp(
        lambda ddp, group, recipe: gft.register(ddp, "fp16")), half=True),
    Configuration("ours+csc", "gradientflow", _ddp(
        lambda ddp, group, recipe: gft.register(ddp, "csc", **recipe.csc())),
        half=True, sparse=True),
    Configuration("dp", "gradientflow", _data_parallel(None), ddp=False),
    Configuration("dp+fp16", "gradientflow", _data_parallel("fp16"),
                  ddp=False, half=True),
    Configuration("dp+csc", "gradientflow", _data_parallel("csc"), ddp=False,
                  half=True, sparse=True),
)
CONFIGURATIONS: Mapping[str, Configuration] = {c.name: c for c in _LIST}


def open_groups(names: list[str]) -> list[tuple[Configuration, Any]]:
    """Returns the configurations, each with a process group of all ranks on its
    backend. The default group, which is made here if it is not there, is Gloo's:
    for agreement."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    found = [CONFIGURATIONS[name] for name in names]
    groups = {backend: backend and dist.new_group(backend=backend)
              for backend in dict.fromkeys(one.backend for one in found)}
    return [(one, groups[one.backend]) for one in found]
