"""Checks of a hook's state, made before anything is taken from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["VERSION", "check_header", "check_csc", "digest_of", "load_together"]

VERSION = 1


def check_header(
    state: Mapping[str, Any], settings: Mapping[str, Any], rank: int
) -> None:
    """Raises ValueError unless the state is of this rank, with these settings."""
    if not isinstance(state, Mapping):
        raise ValueError(f"the hook's state is a {type(state).__name__}, expected a dict")
    version = state.get("version")
    if version != VERSION:
        raise ValueError(f"the hook's state has version {version!r}, expected {VERSION}")
    saved = _part(state, "settings", Mapping)
    for name, value in settings.items():
        seen = saved.get(name)
        if seen != value:
            raise ValueError(
                f"the hook's state was saved with {name}={seen!r}, but this"
                f" hook has {name}={value!r}"
            )
    # States of older versions do not say their rank.
    if state.get("rank", rank) != rank:
        raise ValueError(
            f"the hook's state is that of rank {state['rank']!r}, this is rank {rank}:"
            " each rank saves and loads its own"
        )


def check_csc(state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError unless the rest of CSC's state is consistent and is of these
    parameters. CscHook.check() checks what the library knows better."""
    _check_shapes(_part(state, "shapes", Mapping), shapes)
    step = _part(state, "step", int)
    if not 0 <= step < 2**63:
        raise ValueError(f"the hook's state has step {step}, expected 0 or more")
    _part(state, "loss_scale", (int, float))
    residuals = _part(state, "residual", Mapping)
    for name, residual in residuals.items():
        if name not in shapes:
            raise ValueError(
                f"the hook's state has a residual of {name!r}, which this model has not"
            )
        _check_residual(name, shapes[name], residual)
    _check_buckets(
        _part(state, "buckets", Sequence), _part(state, "selected", Sequence), shapes
    )


def digest_of(state: Mapping[str, Any]) -> str:
    """Digests the buckets and the selection, which are the same on all ranks.

    Args:
        state: a state that check_csc() has accepted.
    """
    digest = hashlib.sha256(repr([list(b) for b in state["buckets"]]).encode())
    for chunks in state["selected"]:
        digest.update(repr(chunks.tolist()).encode())
    return digest.hexdigest()[:16]


def load_together(group: dist.ProcessGroup, check: Callable[[], dict[str, Any]]) -> None:
    """Returns on all ranks, or raises ValueError on all of them.

    Args:
        check: checks this rank's state. It returns what must be the same on all
            ranks, or raises.
    """
    error: Exception | None = None
    mine: dict[str, Any] = {}
    try:
        mine = check()
    except Exception as caught:  # The other ranks await a verdict.
        error = caught
    every: list[Any] = [None] * group.size()
    said = None if error is None else str(error) or type(error).__name__
    dist.all_gather_object(every, (said, mine), group=group)
    if isinstance(error, ValueError):
        raise error
    if error is not None:
        raise ValueError(f"the hook's state is damaged: {error!r}") from error
    for rank, (why, _) in enumerate(every):
        if why is not None:
            raise ValueError(
                f"no rank loads its hook's state, for that of rank {rank} is"
                f" refused: {why}"
            )
    for rank, (_, theirs) in enumerate(every):
        for name, value in theirs.items():
            if value != every[0][1][name]:
                raise ValueError(
                    f"the ranks' states of the hook do not belong together: {name} is"
                    f" {value} on rank {rank}, but {every[0][1][name]} on rank 0"
                )


def _part(state: Mapping[str, Any], name: str, kind: Any) -> Any:
    if name not in state:
        raise ValueError(f"the hook's state has no {name!r}")
    value = state[name]
    if not isinstance(value, kind) or isinstance(value, (bool, str)):
        raise ValueError(
            f"the hook's state has {name!r} of type {type(value).__name__}"
        )
    return value


def _check_shapes(
    seen: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]
) -> None:
    for name, shape in expected.items():
        if name not in seen:
            raise ValueError(
                f"the hook's state has no parameter {name!r}, which this model has"
            )
        if tuple(seen[name]) != shape:
            raise ValueError(
                f"the hook's state has {name!r} of shape {tuple(seen[name])}, this"
                f" model of {shape}"
            )
    for name in seen:
        if name not in expected:
            raise ValueError(
                f"the hook's state has a parameter {name!r}, which this model has not"
            )


def _check_residual(name: str, shape: tuple[int, ...], residual: object) -> None:
    if not isinstance(residual, torch.Tensor):
        raise ValueError(
            f"the hook's state has a residual of {name!r} of type"
            f" {type(residual).__name__}, expected a tensor"
        )
    if residual.dtype != torch.float32 or tuple(residual.shape) != shape:
        raise ValueError(
            f"the hook's state has a residual of {name!r} of {residual.dtype} and"
            f" shape {tuple(residual.shape)}, expected torch.float32 and {shape}"
        )


def _check_buckets(
    buckets: Sequence[Sequence[str]],
    selected: Sequence[torch.Tensor],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    if len(buckets) != len(selected):
        raise ValueError(
            f"the hook's state has {len(buckets)} buckets, but selections for"
            f" {len(selected)}"
        )
    # No buckets at all: saved before the first step.
    names = sorted(name for bucket in buckets for name in bucket)
    if names and names != sorted(shapes):
        raise ValueError(
            "the hook's state does not have each of the model's parameters in one"
            " bucket"
        )
    for index, chunks in enumerate(selected):
        if not isinstance(chunks, torch.Tensor) or chunks.dtype != torch.uint8:
            raise ValueError(
                f"the hook's state has a selection for bucket {index} that is no"
                " tensor of torch.uint8"
            )
