"""Data-parallel training the GradientFlow way: gradients live in one pool."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist

from gradientflow.torch import _C

__all__ = ["DataParallel"]

_STATE_VERSION = 1
_TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


class DataParallel(torch.nn.Module):
    """Averages ``module``'s gradients over all ranks, while backward runs.

    ``loss.backward()`` returns when every ``parameter.grad`` is the mean over
    the ranks, so that clipping, ``GradScaler`` and any optimiser just work.
    Gradients are views of a pool that is sent in buckets, as they become ready;
    those of the next step overwrite them.

    Parameters and buffers are rank 0's from the start, and buffers in each
    forward pass in training. All ranks make the same models, in the same order.
    The ranks are those of ``process_group`` (by default all, if
    ``torch.distributed`` is initialised), else what torchrun, mpirun or srun
    say. Parameters must not change their type or device afterwards, and those
    that are frozen when the model is made stay so.

    What no rank used in a step, or what is frozen, keeps the gradient that it
    had, usually ``None``, as in one process: its weights then stay. A parameter
    that some ranks use gets the mean over all, zeros of the others.

    Args:
        module: the model, on the CPU or on one GPU. float64 is refused, since
            gradients travel in float32 at most.
        process_group: the ranks that train; only its store is used.
        compression: ``"fp16"`` or ``"bf16"`` between ranks, or ``"csc"``: each
            step sends the chunks of the pool that mattered most in the step
            before, the others wait in a residual. ``None``: as they are.
        sparsity: CSC: share of the chunks kept back, in [0, 1).
        chunk_elements: CSC: elements of a chunk.
        warmup_steps: CSC: steps in which the sparsity rises linearly.
        wire_dtype: ``"fp16"``, ``"bf16"`` or ``"fp32"`` between ranks. ``None``:
            as ``compression`` says, for CSC ``"fp16"``.
        residual: CSC: ``"plain"``, for any optimiser, keeps back gradients as
            they are. ``"momentum"`` is for :class:`SGD` and :class:`LARS` of
            this package ONLY: what is kept back decays by their momentum, as
            their update expects; others would lose that part. What is not sent
            reads as zero either way.
        momentum: CSC: of that optimiser.
        bucket_bytes: a bucket leaves when it holds more. ``None``: found out.
        overlap: send while backward runs.
        broadcast_buffers: take over rank 0's buffers in each forward pass.
        find_unused_parameters: ask which parameters a rank used, a bit for each
            in a small message that travels beside the last gradients. ``False``
            saves it; what no rank used then gets zeros, with which weight decay
            and momentum go on.
        grad_scaler: the scaler used with this model, if any: CSC keeps its
            residual in units of the unscaled loss.
        options: further settings, named as the GRADIENTFLOW_* variables.

    Raises:
        torch.distributed.DistBackendError: ranks did not meet, or differ; later
            from ``backward()`` or ``forward()``: a rank failed, and which.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        process_group: dist.ProcessGroup | None = None,
        compression: Literal["fp16", "bf16", "csc"] | None = None,
        sparsity: float = 0.85,
        chunk_elements: int = 32000,
        warmup_steps: int = 0,
        wire_dtype: Literal["fp16", "bf16", "fp32"] | None = None,
        residual: Literal["plain", "momentum"] = "plain",
        momentum: float = 0.9,
        bucket_bytes: int | None = None,
        overlap: bool = True,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = True,
        grad_scaler: torch.amp.GradScaler | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        self._grad_scaler = grad_scaler
        self._sync = True
        self._residual = residual if compression == "csc" else None
        self._momentum = momentum
        settings = _settings(compression, wire_dtype, residual, bucket_bytes)
        if compression == "csc":
            settings["sparsity"] = repr(float(sparsity))
            settings["chunk_elements"] = str(chunk_elements)
            settings["warmup_steps"] = str(warmup_steps)
            settings["momentum"] = repr(float(momentum))
        if not overlap:
            settings["overlap"] = "off"
        settings.update(options or {})
        names, parameters = _trained(module)
        self._frozen = [
            (n, p) for n, p in module.named_parameters() if not p.requires_grad
        ]
        self._buffers_of = [
            (owner._buffers, name)
            for owner in module.modules()
            for name in owner._buffers
        ]
        if process_group is None and dist.is_initialized():
            process_group = dist.group.WORLD
        self._core = _C.DataParallel(
            process_group,
            list(settings.items()),
            names,
            parameters,
            find_unused_parameters,
        )
        self._core.broadcast([*module.parameters(), *self._present_buffers()])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls ``module``."""
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise ValueError(
                    f"{name!r} did not require gradients when DataParallel was"
                    " made, and would not be averaged: make a new one, or freeze"
                    " parameters after it is made"
                )
        self._core.begin_forward()
        if self.training and self.broadcast_buffers and self._sync:
            buffers = self._present_buffers()
            if buffers:
                self._core.broadcast(buffers)
        if self._grad_scaler is not None:
            self._core.set_loss_scale(self._grad_scaler.get_scale())
        output = self.module(*args, **kwargs)
        self._core.watch(output)
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only add up gradients on this rank.

        The next one outside exchanges the sums. Forward passes belong inside,
        too. On all ranks alike.
        """
        before = self._sync
        self._set_sync(False)
        try:
            yield
        finally:
            self._set_sync(before)

    @property
    def stats(self) -> dict[str, Any]:
        """What the last step did on this rank: see ``gf_step_stats``."""
        return self._core.stats

    @property
    def rank(self) -> int:
        """This process among those that train the model."""
        return self._core.rank

    @property
    def size(self) -> int:
        """How many processes train the model."""
        return self._core.size

    def comm_state_dict(self) -> dict[str, Any]:
        """This rank's residual, momentum, selection and step.

        Between steps. Each rank saves its own; weights are in ``state_dict()``.
        """
        return {
            "version": _STATE_VERSION,
            "size": self.size,
            "session": self._core.save_state(),
        }

    def load_comm_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a :meth:`comm_state_dict` of this rank, bit for bit.

        A collective, between steps: all ranks call it, each with the state that
        it saved after the same step. ValueError or DistBackendError on all of
        them, and nothing changes, if one is of another model, other settings,
        another rank, run or step.
        """
        if state.get("version") != _STATE_VERSION:
            raise ValueError(
                f"the state has version {state.get('version')!r}, expected"
                f" {_STATE_VERSION}"
            )
        if state["size"] != self.size:
            raise ValueError(
                f"the state was saved by one of {state['size']} ranks, expected"
                f" {self.size}"
            )
        self._core.restore_state(state["session"])

    def close(self) -> None:
        """Leaves the job; ``module`` stays, with ordinary gradients.

        Between steps. Happens by itself when the model goes.
        """
        self._core.close()

    def _set_sync(self, on: bool) -> None:
        self._sync = on
        self._core.set_sync(on)

    def _present_buffers(self) -> list[torch.Tensor]:
        found = (owner.get(name) for owner, name in self._buffers_of)
        return [buffer for buffer in found if buffer is not None]

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "gradientflow.torch.DataParallel cannot be copied or pickled: save"
            " its state_dict(), or copy its .module"
        )


def _settings(
    compression: str | None,
    wire_dtype: str | None,
    residual: str,
    bucket_bytes: int | None,
) -> dict[str, str]:
    if compression not in (None, "fp16", "bf16", "csc"):
        raise ValueError(
            f"compression: expected 'fp16', 'bf16', 'csc' or None, seen {compression!r}"
        )
    if wire_dtype not in (None, *_TYPES):
        raise ValueError(
            f"wire_dtype: expected one of {', '.join(_TYPES)} or None, seen"
            f" {wire_dtype!r}"
        )
    if compression in ("fp16", "bf16") and wire_dtype not in (None, compression):
        raise ValueError(
            f"wire_dtype={wire_dtype!r} contradicts compression={compression!r}"
        )
    if residual not in ("plain", "momentum"):
        raise ValueError(f"residual: expected 'plain' or 'momentum', seen {residual!r}")
    settings = {}
    if compression == "csc":
        settings["residual"] = residual
        settings["wire_dtype"] = _TYPES[wire_dtype or "fp16"]
    elif compression or wire_dtype:
        settings["wire_dtype"] = _TYPES[compression or wire_dtype or "fp32"]
    if bucket_bytes is not None:
        settings["bucket_bytes"] = str(bucket_bytes)
    return settings


def _trained(
    module: torch.nn.Module,
) -> tuple[list[str], list[torch.nn.Parameter]]:
    """Parameters that need gradients, once each, about in forward order."""
    found = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    if not found:
        raise ValueError(
            f"{type(module).__name__}: expected parameters that require"
            " gradients, seen none"
        )
    for name, parameter in found:
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise ValueError(f"{name!r} has no shape yet: run the module once before")
        if parameter.is_complex():
            raise ValueError(f"{name!r} is {parameter.dtype}, expected a real type")
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(
                f"{name!r} is {parameter.dtype}, expected float32, float16 or"
                " bfloat16, in which gradients travel: use module.float(), or"
                ' DistributedDataParallel over the backend "gradientflow", which'
                " averages float64 as it is"
            )
        if parameter.device != found[0][1].device:
            raise ValueError(
                f"{name!r} is on {parameter.device}, but {found[0][0]!r} on"
                f" {found[0][1].device}: expected one device"
            )
    return [n for n, _ in found], [p for _, p in found]
