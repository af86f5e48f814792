"""Hooks: what register() compares, refuses and chooses."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import batch, loss_of, net

BACKENDS = ["gloo", "gradientflow"]
# The arguments in which rank 1 differs from the others.
OTHERWISE = {
    "compression": "fp16",
    "sparsity": 0.5,
    "chunk_elements": 40,
    "warmup_steps": 3,
    "wire_dtype": "bf16",
    "always_dense": ["0.bias"],
    "grad_scaler": torch.amp.GradScaler("cpu"),
}


def differ(ranks: Ranks) -> list[str]:
    texts = []
    for name, value in OTHERWISE.items():
        model = DistributedDataParallel(net())
        given = {"compression": "csc"}
        if ranks.rank == 1:
            given[name] = value
        with pytest.raises(ValueError, match=f"{name} is .* on rank 1, but") as caught:
            gft.register(model, **given)
        texts.append(str(caught.value))
        # Nothing was registered.
        gft.register(model, "csc")
        loss_of(model, 0, ranks.rank).backward()
    return texts


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_compare_what_they_give(backend: str) -> None:
    texts = launch(differ, 3, backend=backend)
    assert texts[0] == texts[1] == texts[2]


def too_late(ranks: Ranks) -> None:
    model = DistributedDataParallel(net())
    model(batch(0, ranks.rank)[0])
    model(batch(0, ranks.rank)[0]).sum().backward()
    for compression in ("fp16", "csc"):
        with pytest.raises(RuntimeError, match="has run backward already"):
            gft.register(model, compression)


def test_refuses_to_come_late() -> None:
    launch(too_late, 2)


def chunks(ranks: Ranks, width: int) -> tuple[list[int], ...]:
    """By default, when given, and with at least a hundred chunks."""
    seen = []
    for chunk_elements in (None, 1000):
        ddp = DistributedDataParallel(torch.nn.Linear(width, 256))
        hook = gft.register(ddp, "csc", chunk_elements=chunk_elements)
        model = gft.DataParallel(
            torch.nn.Linear(width, 256),
            compression="csc",
            chunk_elements=chunk_elements,
        )
        for each in (ddp, model):
            each(torch.randn(2, width)).sum().backward()
        for stats in (hook.stats(), model.stats):
            seen.append([stats["chunk_elements"], stats["chunks"]])
    return tuple(seen)


def test_chunks_go_by_the_models_size() -> None:
    # 400 x 256 and 256 elements.
    auto, given = [401, 256], [1000, 103]
    assert launch(chunks, 2, 400) == [(auto, auto, given, given)] * 2
