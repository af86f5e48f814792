"""Communication hooks for DistributedDataParallel, over any process group.

The work is done in C++; Python runs at most once per step.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook
from torch.nn.parallel import DistributedDataParallel

from gradientflow.torch import _C
from gradientflow.torch.hook_profile import file_of, open_profile
from gradientflow.torch.hook_state import (
    VERSION,
    check_csc,
    check_header,
    digest_of,
    load_together,
)
from gradientflow.torch.settings import TYPES, csc_settings, refuse_csc_settings

__all__ = ["CommHook", "register"]


class CommHook:
    """What :func:`register` returns: the state and statistics of a hook."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        core: _C.Hook,
        names: list[str],
        parameters: list[torch.nn.Parameter],
        settings: dict[str, Any],
    ) -> None:
        self._ddp = ddp
        self._core = core
        self._names = names
        self._shapes = [tuple(parameter.shape) for parameter in parameters]
        self._settings = settings
        self._rank: int = ddp.process_group.rank()

    def stats(self) -> dict[str, int]:
        """What the hook did on this rank.

        ``steps`` and ``payload_bytes`` count since the hook was registered.
        ``payload_bytes`` is what allreduces were asked to exchange, in the type
        of the wire, whichever way the process group sends it. ``chunks`` and
        ``selected_chunks`` are those of the last step; ``chunk_elements`` is
        the size that was given or chosen.
        """
        return self._core.stats()

    def set_loss_scale(self, scale: float) -> None:
        """Sets the factor by which the coming losses are multiplied.

        To be called before backward, whenever the factor changes: the residual
        of CSC is rescaled. ``register(..., grad_scaler=scaler)`` does so by
        itself.
        """
        if isinstance(self._core, _C.CscHook):
            self._core.set_loss_scale(scale)

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state, between steps; each rank saves its own.

        What is kept back differs from rank to rank. Tensors are on the CPU.
        """
        state: dict[str, Any] = {
            "version": VERSION,
            "rank": self._rank,
            "settings": dict(self._settings),
        }
        if not isinstance(self._core, _C.CscHook):
            return state
        step, loss_scale, buckets, selected, residuals = self._core.save()
        state["step"] = step
        state["loss_scale"] = loss_scale
        state["buckets"] = [[self._names[i] for i in b] for b in buckets]
        state["selected"] = selected
        state["residual"] = {
            name: residual
            for name, residual in zip(self._names, residuals)
            if residual is not None
        }
        state["shapes"] = dict(zip(self._names, self._shapes))
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues, bit for bit, from a :meth:`state_dict` of this rank.

        A collective, between steps: all ranks call it, each with the state that
        it saved after the same step. It may be called after a backward pass
        that failed; if DDP itself then takes no more steps, load the state into
        the hook of a new DDP.

        A new DDP gets the buckets that the old one had. A DDP that has built
        its own buckets keeps them: if the state has others, because it was
        saved after the very first step, training continues with a different
        selection of chunks. If a state is damaged, or of another model, other
        settings, another number of ranks, another rank or step, then all ranks
        raise ValueError and nothing changes.
        """
        load_together(self._ddp.process_group, lambda: self._claim(state))
        if not isinstance(self._core, _C.CscHook):
            return
        self._core.restore(
            self._ddp.reducer,
            self._ddp.static_graph or not self._ddp.find_unused_parameters,
            *self._selection_of(state),
            [state["residual"].get(name) for name in self._names],
        )

    def _selection_of(
        self, state: Mapping[str, Any]
    ) -> tuple[int, float, list[list[int]], list[torch.Tensor]]:
        """Returns what check() and restore() of the core take of a state."""
        index = {name: i for i, name in enumerate(self._names)}
        return (
            state["step"],
            state["loss_scale"],
            [[index[name] for name in bucket] for bucket in state["buckets"]],
            [chunks.cpu().contiguous() for chunks in state["selected"]],
        )

    def _claim(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what must be the same on all ranks for the state to be
        loaded."""
        if torch._C._current_graph_task_id() != -1:
            raise ValueError("load_state_dict() within backward, expected it after")
        check_header(state, self._settings, self._rank)
        if not isinstance(self._core, _C.CscHook):
            return {}
        shapes = dict(zip(self._names, self._shapes))
        check_csc(state, shapes)
        self._core.check(*self._selection_of(state))
        return {
            "the step": state["step"],
            "the loss scale": state["loss_scale"],
            "the hash of the selected chunks": digest_of(state),
        }


def register(
    ddp: DistributedDataParallel,
    compression: Literal["fp16", "bf16", "csc"],
    *,
    sparsity: float | None = None,
    chunk_elements: int | None = None,
    warmup_steps: int | None = None,
    wire_dtype: Literal["fp16", "bf16", "fp32"] | None = None,
    always_dense: Iterable[str] | None = None,
    grad_scaler: torch.amp.GradScaler | None = None,
) -> CommHook:
    """Compresses the gradients that ``ddp`` exchanges.

    To be called before the first backward, on all ranks; they compare their
    arguments. Works over any process group, and in all of DDP's modes.
    ``join()`` is supported: means are over all ranks.

    Args:
        ddp: the model to train.
        compression: ``"fp16"``, ``"bf16"``: 16 bits between ranks. ``"csc"``:
            send only the chunks of gradients that mattered most in the step
            before; the others count as zeros and are added to the next
            gradients.
        sparsity: CSC: the share of the chunks that is kept back, in [0, 1);
            default 0.85.
        chunk_elements: CSC: the elements of a chunk. ``None``: a 256th of the
            model, but at least 64 and at most 32,000; see ``stats()``.
        warmup_steps: CSC: steps over which the sparsity rises linearly from 0;
            default 0.
        wire_dtype: CSC: the type of the chunks between ranks; default
            ``"fp16"``.
        always_dense: CSC: names of parameters (as ``ddp.module`` has them) that
            are sent in every step. Name the parameters that no rank uses in some
            steps (``find_unused_parameters``): DDP drops what is sent for them
            in such a step.
        grad_scaler: CSC: the scaler used with this model, if any. What is kept
            back follows its scale.

    Raises:
        ValueError: an argument is out of range, or differs from rank 0's.
        RuntimeError: ``ddp`` has a hook already, or has run backward.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"ddp: expected a DistributedDataParallel, seen {type(ddp).__name__}"
        )
    csc = {
        "sparsity": sparsity,
        "chunk_elements": chunk_elements,
        "warmup_steps": warmup_steps,
    }
    dense = None if always_dense is None else sorted(always_dense)
    only_csc = {
        **csc,
        "wire_dtype": wire_dtype,
        "always_dense": dense,
        "grad_scaler": None if grad_scaler is None else type(grad_scaler).__name__,
    }
    _agree(
        ddp,
        {"compression": compression, **only_csc, "GRADIENTFLOW_PROFILE": file_of()},
    )
    names, parameters = _reduced(ddp)
    settings: dict[str, Any] = {
        "compression": compression,
        "world_size": ddp.process_group.size(),
    }
    if compression in ("fp16", "bf16"):
        del only_csc["grad_scaler"]  # It does no harm without CSC.
        refuse_csc_settings(compression, only_csc)
        core: _C.Hook = _C.register_cast_hook(
            ddp.reducer,
            ddp.process_group,
            compression,
            open_profile(ddp, names, parameters),
        )
        return CommHook(ddp, core, names, parameters, settings)
    if compression != "csc":
        raise ValueError(
            f"compression: expected 'fp16', 'bf16' or 'csc', seen {compression!r}"
        )
    elements = sum(parameter.numel() for parameter in parameters)
    settings.update(csc_settings(elements, **csc))
    settings["wire_dtype"] = "fp16" if wire_dtype is None else wire_dtype
    if settings["wire_dtype"] not in TYPES:
        raise ValueError(
            f"wire_dtype: expected one of {', '.join(TYPES)}, seen {wire_dtype!r}"
        )
    settings["always_dense"] = _known(dense or [], names)
    core = _C.register_csc_hook(
        ddp.reducer,
        ddp.process_group,
        parameters,
        [name in settings["always_dense"] for name in names],
        settings["sparsity"],
        settings["chunk_elements"],
        settings["warmup_steps"],
        settings["wire_dtype"],
        profile=open_profile(ddp, names, parameters),
    )
    hook = CommHook(ddp, core, names, parameters, settings)
    _follow_join(ddp, core)
    if grad_scaler is not None:
        scaler = grad_scaler

        def follow_scale(*_: object) -> None:
            hook.set_loss_scale(scaler.get_scale())

        ddp.register_forward_pre_hook(follow_scale)
    return hook


def _reduced(
    ddp: DistributedDataParallel,
) -> tuple[list[str], list[torch.nn.Parameter]]:
    """Returns the parameters that DDP reduces, in its order."""

    def each() -> Iterator[tuple[str, torch.nn.Parameter]]:
        for prefix, module in ddp.module.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                # In DDP's own list the parameters of the root have a leading
                # dot.
                if f"{prefix}.{name}" in ddp.parameters_to_ignore:
                    continue
                if parameter.requires_grad:
                    yield (f"{prefix}.{name}" if prefix else name), parameter

    found: dict[int, tuple[str, torch.nn.Parameter]] = {}
    for name, parameter in each():
        found.setdefault(id(parameter), (name, parameter))
    return [n for n, _ in found.values()], [p for _, p in found.values()]


def _agree(ddp: DistributedDataParallel, mine: dict[str, Any]) -> None:
    """Compares the arguments of all ranks before any rank judges its own, so
    that all raise the same error."""
    every: list[Any] = [None] * ddp.process_group.size()
    dist.all_gather_object(every, mine, group=ddp.process_group)
    for rank, theirs in enumerate(every):
        for name, value in theirs.items():
            if value != every[0][name]:
                raise ValueError(
                    f"register(): {name} is {value!r} on rank {rank}, but"
                    f" {every[0][name]!r} on rank 0: expected the same on all ranks"
                )


def _known(wanted: list[str], names: list[str]) -> list[str]:
    for name in sorted(set(wanted) - set(names)):
        near = difflib.get_close_matches(name, names, 1)
        raise ValueError(
            f"always_dense: {name!r} is no parameter that is trained"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    return sorted(set(wanted))


def _follow_join(ddp: DistributedDataParallel, core: _C.CscHook) -> None:
    """Makes a rank without inputs take part in the exchange of norms, too."""
    join_hook: Callable[..., JoinHook] = ddp.join_hook

    class Shadow(JoinHook):
        def __init__(self, **kwargs: Any) -> None:
            self._hook = join_hook(**kwargs)

        def main_hook(self) -> None:
            self._hook.main_hook()
            core.finish_shadow()

        def post_hook(self, is_last_joiner: bool) -> None:
            self._hook.post_hook(is_last_joiner)

    ddp.join_hook = Shadow  # type: ignore[method-assign]
