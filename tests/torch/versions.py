"""Features that older versions of torch withhold from other backends."""

from __future__ import annotations

import pytest
import torch

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
SINCE_2_14 = _VERSION >= (2, 14)

since_2_13 = pytest.mark.skipif(
    _VERSION < (2, 13),
    reason="before torch 2.13 DETAIL's wrapper counts no calls of other backends",
)
since_2_14 = pytest.mark.skipif(
    not SINCE_2_14,
    reason="before torch 2.14 torch finds no backend by its entry point, and keeps"
    " monitored_barrier and get_error for its own",
)
since_2_15 = pytest.mark.skipif(
    _VERSION < (2, 15),
    reason="before torch 2.15 split_group is for GPUs alone, and the flight"
    " recorder for torch's own backends",
)
