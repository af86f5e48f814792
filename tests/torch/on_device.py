"""Lets tests that are written for the CPU run on another device."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors


class OnDevice(TorchFunctionMode):
    """New tensors are made on a device, and numpy gets copies of them.

    torch.set_default_device() does the first as well, but refuses generators of
    the CPU. Here these make the same numbers as on the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _device_constructors() and kwargs.get("device") is None:
            if kwargs.get("generator") is not None:
                return func(*args, **kwargs).to(self.device)
            kwargs["device"] = self.device
        elif func in (torch.Tensor.numpy, torch.Tensor.__array__):
            args = (args[0].cpu(), *args[1:])
        return func(*args, **kwargs)
