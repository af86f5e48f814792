"""Data-parallel training the GradientFlow way: gradients live in one pool."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist

from gradientflow.torch import _C
from gradientflow.torch.guard import guard, release
from gradientflow.torch.settings import TYPES, csc_settings, refuse_csc_settings

__all__ = ["DataParallel"]

_STATE_VERSION = 1


class DataParallel(torch.nn.Module):
    """Averages ``module``'s gradients over all ranks, while backward runs.

    ``loss.backward()`` returns when every ``parameter.grad`` is the mean over
    the ranks, so that clipping, ``GradScaler`` and any optimiser just work.
    Gradients are views of a pool that is sent in buckets, as they become ready;
    the gradients of the next step overwrite those of this step.

    Rank 0's parameters and buffers are copied to all ranks at the start, and
    its buffers again in each forward pass in training mode. All ranks make the
    same models, in the same order. The ranks are those of ``process_group`` (by
    default all, if ``torch.distributed`` is initialised), else those of
    torchrun, mpirun or srun. Parameters must not change their type or device
    afterwards, and parameters that are frozen when the model is made must stay
    frozen.

    A parameter that no rank used in a step, or that is frozen, keeps the
    gradient that it had, usually ``None``, so that its weights stay, as in one
    process. A parameter that only some ranks use gets the mean over all ranks,
    to which the others contribute zeros.

    Args:
        module: the model, on the CPU or on one GPU. float64 is refused, since
            gradients travel in float32 at most.
        process_group: the ranks that train; only its store is used.
        compression: ``"fp16"`` or ``"bf16"`` between ranks, or ``"csc"``: each
            step sends the chunks of the pool that mattered most in the step
            before; the others wait in a residual. ``None``: no compression.
        sparsity: CSC: the share of the chunks that is kept back, in [0, 1);
            default 0.85.
        chunk_elements: CSC: the elements of a chunk. ``None``: a 256th of the
            model, but at least 64 and at most 32,000; see ``stats``.
        warmup_steps: CSC: steps over which the sparsity rises linearly from 0;
            default 0.
        wire_dtype: ``"fp16"``, ``"bf16"`` or ``"fp32"`` between ranks. ``None``:
            as ``compression`` says, and ``"fp16"`` for CSC.
        residual: CSC: ``"plain"``, the default, works with any optimiser, and
            keeps gradients back as they are. ``"momentum"`` is for the
            :class:`SGD` and :class:`LARS` of this package: the residual decays
            by their momentum, as their update expects. Other optimisers would
            lose the decayed part, so their first step is refused. With either,
            chunks that are not sent read as zero.
        momentum: the momentum of that optimiser, with ``residual="momentum"``;
            default 0.9.
        bucket_bytes: a bucket is sent when it holds more bytes than this.
            ``None``: chosen by measurement.
        overlap: whether to send while backward runs.
        broadcast_buffers: whether to copy rank 0's buffers to all ranks in each
            forward pass.
        find_unused_parameters: whether to ask which parameters any rank used, in
            a message of one bit each that travels beside the last gradients.
            ``False`` saves the message; parameters that no rank used then get
            zero gradients, to which weight decay and momentum still apply.
        grad_scaler: the scaler used with this model, if any. CSC keeps its
            residual in units of the unscaled loss.
        options: further settings, named like the GRADIENTFLOW_* variables,
            except ``pool_dtype`` and ``device``, which follow the parameters.

    Raises:
        ValueError, TypeError: an argument or parameter is not as expected.
        torch.distributed.DistBackendError: ranks did not meet, or differ. Later
            ``backward()`` or ``forward()`` raises it if a rank has failed, and
            names that rank.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        process_group: dist.ProcessGroup | None = None,
        compression: Literal["fp16", "bf16", "csc"] | None = None,
        sparsity: float | None = None,
        chunk_elements: int | None = None,
        warmup_steps: int | None = None,
        wire_dtype: Literal["fp16", "bf16", "fp32"] | None = None,
        residual: Literal["plain", "momentum"] | None = None,
        momentum: float | None = None,
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
        names, parameters = _trained(module)
        self._sent = tuple(parameters)
        settings = _settings(compression, wire_dtype)
        csc = {
            "sparsity": sparsity,
            "chunk_elements": chunk_elements,
            "warmup_steps": warmup_steps,
        }
        if compression == "csc":
            elements = sum(parameter.numel() for parameter in parameters)
            settings.update(csc_settings(elements, **csc))
            settings.update(_residual_settings(residual, momentum))
        else:
            refuse_csc_settings(
                compression, {**csc, "residual": residual, "momentum": momentum}
            )
        if bucket_bytes is not None:
            settings["bucket_bytes"] = bucket_bytes
        if not overlap:
            settings["overlap"] = "off"
        settings.update(options or {})
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
            [(name, str(value)) for name, value in settings.items()],
            names,
            parameters,
            find_unused_parameters,
        )
        self._core.broadcast([*module.parameters(), *self._present_buffers()])
        # The momentum of the optimiser that the residual is for; None: any
        # optimiser.
        self._momentum = self._core.momentum
        if self._momentum is not None:
            guard(self, parameters)

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
        """Within this context backward passes only add up gradients on this
        rank.

        The next backward pass outside exchanges the sums. Forward passes belong
        inside, too. All ranks do this alike.
        """
        before = self._sync
        self._set_sync(False)
        try:
            yield
        finally:
            self._set_sync(before)

    @property
    def stats(self) -> dict[str, Any]:
        """What the last step did on this rank: see ``gf_step_stats``.

        On GPUs that NCCL connects, a step ends on the GPU alone, and the host
        learns of it with the next one: these are the statistics of the step
        before, and an error of the last step is raised by the next one.

        ``chunk_elements`` is the size that was given or chosen. The entries
        ``rdma_...`` are there if the step has used RDMA links.
        """
        return self._core.stats

    @property
    def rank(self) -> int:
        """The number of this process among those that train the model."""
        return self._core.rank

    @property
    def size(self) -> int:
        """How many processes train the model."""
        return self._core.size

    def comm_state_dict(self) -> dict[str, Any]:
        """Returns this rank's residual, momentum, selection and step.

        To be called between steps. Each rank saves its own; the weights are in
        ``state_dict()``.
        """
        return {
            "version": _STATE_VERSION,
            "size": self.size,
            "session": self._core.save_state(),
        }

    def load_comm_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a :meth:`comm_state_dict` of this rank, bit for bit.

        A collective, between steps: all ranks call it, each with the state that
        it saved after the same step. If any state is of another model, other
        settings, another rank, run or step, then nothing changes and all ranks
        raise ValueError or DistBackendError.
        """
        self._restore(lambda: self._session_of(state))

    def _restore(self, find: Callable[[], torch.Tensor]) -> None:
        """Loads what ``find`` returns, as load_comm_state_dict() does. If
        ``find`` raises, this raises the same, and the other ranks raise, too.
        """
        try:
            session = find()
        except Exception:
            # The other ranks wait for this one. An empty state is refused on
            # all.
            with contextlib.suppress(dist.DistBackendError):
                self._core.restore_state(
                    torch.empty(0, dtype=torch.uint8, device="cpu")
                )
            raise
        self._core.restore_state(session)

    def _session_of(self, state: Mapping[str, Any]) -> torch.Tensor:
        """Returns the session's part of a :meth:`comm_state_dict`, or raises
        ValueError."""
        if not isinstance(state, Mapping):
            raise ValueError(f"the state is a {type(state).__name__}, expected a dict")
        if state.get("version") != _STATE_VERSION:
            raise ValueError(
                f"the state has version {state.get('version')!r}, expected"
                f" {_STATE_VERSION}"
            )
        if state.get("size") != self.size:
            raise ValueError(
                f"the state was saved by one of {state.get('size')} ranks, expected"
                f" {self.size}"
            )
        session = state.get("session")
        if not isinstance(session, torch.Tensor):
            raise ValueError("the state has no tensor 'session'")
        if session.dtype != torch.uint8 or session.device.type != "cpu":
            raise ValueError(
                f"the session's state is {session.dtype} on {session.device},"
                " expected uint8 on the CPU"
            )
        return session.contiguous()

    def close(self) -> None:
        """Leaves the job; ``module`` stays, with ordinary gradients.

        To be called between steps. It also happens when the model is destroyed.
        """
        self._core.close()
        release(self)

    def _set_sync(self, on: bool) -> None:
        self._sync = on
        self._core.set_sync(on)

    def _present_buffers(self) -> list[torch.Tensor]:
        found = (owner.get(name) for owner, name in self._buffers_of)
        return [buffer for buffer in found if buffer is not None]

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "gradientflow.torch.DataParallel cannot be copied or pickled, since it"
            " is a rank's part in a job. Save its state_dict(), or take its"
            " .module: copy.deepcopy(model.module), AveragedModel(model.module)"
        )

    def join(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: all ranks have to take the same number of steps."""
        raise NotImplementedError(
            "gradientflow.torch.DataParallel has no join(): all ranks take the same"
            " number of steps. Give each as many batches, as DistributedSampler"
            " does, or use DistributedDataParallel over the backend"
            ' "gradientflow", which has join()'
        )

    def join_hook(self, **kwargs: Any) -> NoReturn:
        """Called by torch.distributed.algorithms.Join; raises as :meth:`join`
        does."""
        self.join(**kwargs)


def _settings(compression: str | None, wire_dtype: str | None) -> dict[str, Any]:
    if compression not in (None, "fp16", "bf16", "csc"):
        raise ValueError(
            f"compression: expected 'fp16', 'bf16', 'csc' or None, seen {compression!r}"
        )
    if wire_dtype not in (None, *TYPES):
        raise ValueError(
            f"wire_dtype: expected one of {', '.join(TYPES)} or None, seen"
            f" {wire_dtype!r}"
        )
    if compression in ("fp16", "bf16") and wire_dtype not in (None, compression):
        raise ValueError(
            f"wire_dtype={wire_dtype!r} contradicts compression={compression!r}"
        )
    if compression == "csc":
        return {"wire_dtype": TYPES[wire_dtype or "fp16"]}
    wire = compression or wire_dtype
    return {"wire_dtype": TYPES[wire]} if wire else {}


def _residual_settings(
    residual: str | None, momentum: float | None
) -> dict[str, Any]:
    if residual not in (None, "plain", "momentum"):
        raise ValueError(f"residual: expected 'plain' or 'momentum', seen {residual!r}")
    if residual != "momentum":
        if momentum is not None:
            raise ValueError(
                f"momentum={momentum!r} is for residual='momentum', seen"
                f" residual={residual!r}"
            )
        return {"residual": "plain"}
    chosen = 0.9 if momentum is None else float(momentum)
    if chosen == 0:
        raise ValueError(
            "momentum: expected more than 0, as residual is 'momentum'; without"
            " momentum use residual='plain'"
        )
    return {"residual": "momentum", "momentum": chosen}


def _trained(
    module: torch.nn.Module,
) -> tuple[list[str], list[torch.nn.Parameter]]:
    """Returns the parameters that need gradients, once each, roughly in forward
    order."""
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
        types = _C.gradient_types()
        if str(parameter.dtype).removeprefix("torch.") not in types:
            raise TypeError(
                f"{name!r} is {parameter.dtype}, expected a type in which gradients"
                f" travel ({', '.join(types)}): use module.float(), or"
                ' DistributedDataParallel over the backend "gradientflow", which'
                " averages float64 as it is"
            )
        if parameter.device != found[0][1].device:
            raise ValueError(
                f"{name!r} is on {parameter.device}, but {found[0][0]!r} on"
                f" {found[0][1].device}: expected one device"
            )
    return [n for n, _ in found], [p for _, p in found]
