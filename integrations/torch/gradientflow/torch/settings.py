"""Settings that the hook and DataParallel share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradientflow.torch import _C

__all__ = ["TYPES", "chunk_elements_for", "csc_settings", "refuse_csc_settings"]

# The library's names of the types.
TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


def chunk_elements_for(elements: int) -> int:
    """Returns the default size of a chunk: a 256th of the model's elements, so that
    there are enough chunks to select from; but at least 64, since the norms of
    smaller chunks would cost more than they save, and at most the paper's
    32,000."""
    return min(max(elements // 256, 64), 32000)


def csc_settings(
    elements: int,
    sparsity: float | None,
    chunk_elements: int | None,
    warmup_steps: int | None,
) -> dict[str, Any]:
    """Fills in defaults for settings that are None; raises the library's ValueError.

    Args:
        elements: the number of elements of all parameters, from which the size
            of a chunk follows if it is None.
    """
    settings: dict[str, Any] = {
        "sparsity": 0.85 if sparsity is None else float(sparsity),
        "chunk_elements": chunk_elements,
        "warmup_steps": 0 if warmup_steps is None else warmup_steps,
    }
    if not chunk_elements:
        settings["chunk_elements"] = chunk_elements_for(elements)
    for name, value in settings.items():
        _C.check_setting(name, str(value))
    return settings


def refuse_csc_settings(compression: str | None, given: Mapping[str, Any]) -> None:
    """Raises ValueError for any that is not None, since `compression` is not
    CSC."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name}={value!r} is for compression='csc', seen"
                f" compression={compression!r}"
            )
