"""Checks sums that torch.distributed makes."""

from typing import Any

import torch
import torch.distributed as dist


def count_wrong(data: torch.Tensor, group: Any = None) -> int:
    """Sums known small integers over the ranks of `group` in the place of `data`.
    Returns how many sums are wrong; leaves zeros."""
    def of(rank: int) -> torch.Tensor:
        squares = (torch.arange(data.numel()) % 1009) ** 2
        return (squares + 13 * rank) % 11 - 5

    data.copy_(of(dist.get_rank()))
    dist.all_reduce(data, group=group)
    wrong = data != sum(map(of, range(dist.get_world_size())))
    data.zero_()
    return int(wrong.sum())
