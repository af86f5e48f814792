"""GradientFlow's C++ side for PyTorch. Not for users: see the modules."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

def library_version() -> int: ...
def gradient_types() -> list[str]: ...
def close_all() -> None: ...
def check_setting(name: str, value: str) -> None: ...

class Backend(_c10d.Backend):
    class Options(_c10d.Backend.Options):
        def __init__(
            self,
            timeout: timedelta,
            group_name: str = ...,
            global_ranks_in_group: Sequence[int] = ...,
        ) -> None: ...

    @property
    def session_ranks(self) -> list[int]: ...
    @staticmethod
    def open(
        store: _c10d.Store, rank: int, size: int, options: Backend.Options
    ) -> Backend: ...
    def subgroup(
        self, store: _c10d.Store, ranks: Sequence[int], options: Backend.Options
    ) -> Backend: ...
    def perform_nocolor_split(self, device: torch.device) -> None: ...

class Hook:
    def stats(self) -> dict[str, int]: ...

class CscHook(Hook):
    def save(
        self,
    ) -> tuple[
        int,
        float,
        list[list[int]],
        list[torch.Tensor],
        list[torch.Tensor | None],
    ]: ...
    def check(
        self,
        step: int,
        loss_scale: float,
        buckets: Sequence[Sequence[int]],
        selected: Sequence[torch.Tensor],
    ) -> None: ...
    def restore(
        self,
        reducer: Any,
        rebuilds: bool,
        step: int,
        loss_scale: float,
        buckets: Sequence[Sequence[int]],
        selected: Sequence[torch.Tensor],
        residuals: Sequence[torch.Tensor | None],
    ) -> None: ...
    def set_loss_scale(self, scale: float) -> None: ...
    def finish_shadow(self) -> None: ...

class HookProfile:
    @staticmethod
    def open(
        group: dist.ProcessGroup,
        names: Sequence[str],
        parameters: Sequence[torch.Tensor],
        device: str,
    ) -> HookProfile | None: ...
    def optimizer_begins(self) -> None: ...
    def optimizer_ends(self) -> None: ...
    def close(self) -> None: ...

def register_cast_hook(
    reducer: Any,
    group: dist.ProcessGroup,
    wire: str,
    profile: HookProfile | None = ...,
) -> Hook: ...
def register_csc_hook(
    reducer: Any,
    group: dist.ProcessGroup,
    parameters: Sequence[torch.Tensor],
    always_dense: Sequence[bool],
    sparsity: float,
    chunk_elements: int,
    warmup_steps: int,
    wire: str,
    staged: bool = ...,
    keep_factor: float = ...,
    profile: HookProfile | None = ...,
) -> CscHook: ...

class DataParallel:
    def __init__(
        self,
        group: dist.ProcessGroup | None,
        settings: Sequence[tuple[str, str]],
        names: Sequence[str],
        parameters: Sequence[torch.Tensor],
        find_unused: bool,
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def momentum(self) -> float | None: ...
    @property
    def stats(self) -> dict[str, Any]: ...
    def begin_forward(self) -> None: ...
    def watch(self, output: object) -> None: ...
    def set_sync(self, on: bool) -> None: ...
    def set_loss_scale(self, scale: float) -> None: ...
    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None: ...
    def optimizer_step(
        self,
        groups: Sequence[tuple[bool, float, float, float, bool, float, float]],
        group_of: Sequence[int],
    ) -> None: ...
    def save_state(self) -> torch.Tensor: ...
    def restore_state(self, state: torch.Tensor) -> None: ...
    def close(self) -> None: ...
