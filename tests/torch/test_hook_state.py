"""A hook's state in checkpoints."""

from __future__ import annotations

import copy
import pathlib

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import batch, bits_of, force_tensor_ops, net

SETTINGS = {"sparsity": 0.7, "chunk_elements": 17, "warmup_steps": 4}


class Run:
    """DDP training with the csc hook, as far as a checkpoint knows it."""

    def __init__(self, unused: bool = False) -> None:
        self.model = DistributedDataParallel(
            net(), bucket_cap_mb=1e-3, find_unused_parameters=unused
        )
        self.hook = gft.register(self.model, "csc", **SETTINGS)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, 0.9)

    def train(self, rank: int, first: int, last: int) -> None:
        for step in range(first, last):
            inputs, targets = batch(step, rank)
            self.optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.model(inputs), targets).backward()
            self.optimizer.step()

    def state(self) -> dict:
        parts = {"model": self.model, "hook": self.hook, "optimizer": self.optimizer}
        return {name: copy.deepcopy(p.state_dict()) for name, p in parts.items()}

    def load(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.hook.load_state_dict(state["hook"])
        self.optimizer.load_state_dict(state["optimizer"])


def go(
    ranks: Ranks, folder: str, first: int, last: int, unused: bool, tensor_ops: bool
) -> list[bytes]:
    if tensor_ops:
        force_tensor_ops()
    path = pathlib.Path(folder) / str(ranks.rank)
    run = Run(unused)
    if first > 0:
        run.load(torch.load(path))
    run.train(ranks.rank, first, last)
    torch.save(run.state(), path)
    return bits_of(run.model)


@pytest.mark.parametrize("tensor_ops", [False, True])
@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize("backend", ["gloo", "gradientflow"])
def test_goes_on_in_new_processes_bit_for_bit(
    tmp_path: pathlib.Path, backend: str, unused: bool, tensor_ops: bool
) -> None:
    def steps(first: int, last: int) -> list[list[bytes]]:
        how = (str(tmp_path), first, last, unused, tensor_ops)
        return launch(go, 2, *how, backend=backend)

    through = steps(0, 12)
    # After one step DDP has yet to rebuild its buckets, and a new one would not
    # know how; with unused parameters it never does.
    for stop in (1, 6) if unused else (2, 6):
        steps(0, stop)
        assert steps(stop, 12) == through, f"stopped after {stop} steps"


def go_back(ranks: Ranks) -> None:
    run = Run()
    run.train(ranks.rank, 0, 5)
    state = run.state()
    run.train(ranks.rank, 5, 10)
    once = bits_of(run.model)
    kept = run.hook.state_dict()["residual"]
    run.load(state)
    run.train(ranks.rank, 5, 10)
    assert bits_of(run.model) == once
    for name, residual in run.hook.state_dict()["residual"].items():
        assert torch.equal(residual, kept[name])


def test_goes_back_in_the_same_process() -> None:
    launch(go_back, 3)


def without_residual(ranks: Ranks) -> None:
    """The state matters: without the hook's part the path is another."""
    run = Run()
    run.train(ranks.rank, 0, 8)
    state = run.state()
    run.train(ranks.rank, 8, 12)
    once = bits_of(run.model)
    for residual in state["hook"]["residual"].values():
        residual.zero_()
    run.load(state)
    run.train(ranks.rank, 8, 12)
    assert bits_of(run.model) != once


def test_residual_is_part_of_the_state() -> None:
    launch(without_residual, 2)


def refuse(ranks: Ranks) -> None:
    run = Run()
    run.train(ranks.rank, 0, 3)
    state = run.hook.state_dict()

    def load_with(match: str, change: object) -> None:
        other = copy.deepcopy(state)
        change(other)
        with pytest.raises(ValueError, match=match):
            run.hook.load_state_dict(other)

    load_with("version 7, expected 1", lambda s: s.update(version=7))
    load_with(
        "saved with sparsity=0.5, but this hook has sparsity=0.7",
        lambda s: s["settings"].update(sparsity=0.5),
    )
    load_with("world_size=9", lambda s: s["settings"].update(world_size=9))
    load_with("no parameter '0.bias'", lambda s: s["shapes"].pop("0.bias"))
    load_with("has a parameter 'x'", lambda s: s["shapes"].update(x=(1,)))
    load_with(
        r"'0.bias' of shape \(38,\), this model of \(37,\)",
        lambda s: s["shapes"].update({"0.bias": (38,)}),
    )
    load_with(
        "residual of '0.bias' of torch.float64",
        lambda s: s["residual"].update({"0.bias": torch.zeros(37).double()}),
    )
    # Nothing has changed.
    run.hook.load_state_dict(state)
    cast = gft.register(DistributedDataParallel(net()), "fp16")
    with pytest.raises(ValueError, match="compression='csc'"):
        cast.load_state_dict(state)
    cast.load_state_dict(cast.state_dict())


def test_refuses_other_states() -> None:
    launch(refuse, 1)
