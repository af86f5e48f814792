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
        sparsity: CSC: share of the chunks kept back, in [0, 1); 0.85.
        chunk_elements: CSC: elements of a chunk. ``None``: a 256th of the
            model, from 64 to 32,000; ``stats`` tells.
        warmup_steps: CSC: steps in which the sparsity rises linearly; 0.
        wire_dtype: ``"fp16"``, ``"bf16"`` or ``"fp32"`` between ranks. ``None``:
            as ``compression`` says, for CSC ``"fp16"``.
        residual: CSC: ``"plain"``, for any optimiser and the default, keeps back
            gradients as they are. ``"momentum"`` is for :class:`SGD` and
            :class:`LARS` of this package: what is kept back decays by their
            momentum, as their update expects; others would lose that part, and
            are refused in their first step. What is not sent reads as zero
            either way.
        momentum: with ``residual="momentum"``: of that optimiser; 0.9.
        bucket_bytes: a bucket leaves when it holds more. ``None``: found out.
        overlap: send while backward runs.
        broadcast_buffers: take over rank 0's buffers in each forward pass.
        find_unused_parameters: ask which parameters a rank used, a bit for each
            in a small message that travels beside the last gradients. ``False``
            saves it; what no rank used then gets zeros, with which weight decay
            and momentum go on.
        grad_scaler: the scaler used with this model, if any: CSC keeps its
            residual in units of the unscaled loss.
        options: further settings, named as the GRADIENTFLOW_* variables; not
            ``pool_dtype`` and ``device``, which are the parameters'.

    Raises:
        ValueError, TypeError: an argument or parameter is not as expected.
        torch.distributed.DistBackendError: ranks did not meet, or differ; later
            from ``backward()`` or ``forward()``: a rank failed, and which.
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
        # Of the optimiser that the residual asks for; None: any.
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
        """What the last step did on this rank: see ``gf_step_stats``.

        ``chunk_elements`` is as given or chosen.
        """
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
        self._restore(lambda: self._session_of(state))

    def _restore(self, find: Callable[[], torch.Tensor]) -> None:
        """load_comm_state_dict() of what ``find`` returns; if it raises, so does
        this, and the other ranks raise, too."""
        try:
            session = find()
        except Exception:
            # The others wait for this rank. Nothing is a state that is refused.
            with contextlib.suppress(dist.DistBackendError):
                self._core.restore_state(torch.empty(0, dtype=torch.uint8))
            raise
        self._core.restore_state(session)

    def _session_of(self, state: Mapping[str, Any]) -> torch.Tensor:
        """The session's part of a :meth:`comm_state_dict`. ValueError."""
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

        Between steps. Happens by itself when the model goes.
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
        """All ranks take the same number of steps: raises, and says so."""
        raise NotImplementedError(
            "gradientflow.torch.DataParallel has no join(): all ranks take the same"
            " number of steps. Give each as many batches, as DistributedSampler"
            " does, or use DistributedDataParallel over the backend"
            ' "gradientflow", which has join()'
        )

    def join_hook(self, **kwargs: Any) -> NoReturn:
        """What torch.distributed.algorithms.Join asks for: :meth:`join`."""
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
