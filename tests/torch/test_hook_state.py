"""A hook's state in checkpoints."""

from __future__ import annotations

import copy
import pathlib

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import batch, bits_of, force_staging, net

SETTINGS = {"sparsity": 0.7, "chunk_elements": 17, "warmup_steps": 4}


class Run:
    """DDP training with the csc hook, with all the state that a checkpoint has."""

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
    ranks: Ranks, folder: str, first: int, last: int, unused: bool, staged: bool
) -> list[bytes]:
    if staged:
        force_staging()
    path = pathlib.Path(folder) / str(ranks.rank)
    run = Run(unused)
    if first > 0:
        run.load(torch.load(path))
    run.train(ranks.rank, first, last)
    torch.save(run.state(), path)
    return bits_of(run.model)


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize("backend", ["gloo", "gradientflow"])
def test_goes_on_in_new_processes_bit_for_bit(
    tmp_path: pathlib.Path, backend: str, unused: bool, staged: bool
) -> None:
    def steps(first: int, last: int) -> list[list[bytes]]:
        how = (str(tmp_path), first, last, unused, staged)
        return launch(go, 2, *how, backend=backend)

    through = steps(0, 12)
    # After one step DDP has yet to rebuild its buckets, and a new DDP could not
    # do so; with unused parameters it never rebuilds.
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
    """The state matters: without the hook's part training takes another path."""
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


def assert_same(one: dict, other: dict) -> None:
    tensors = [[*s["residual"].values(), *s["selected"]] for s in (one, other)]
    assert all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))
    for name in set(one) - {"residual", "selected"}:
        assert one[name] == other[name], name


def refuse(ranks: Ranks) -> None:
    run = Run()
    run.train(ranks.rank, 0, 3)
    state = run.hook.state_dict()

    def load_with(match: str, change: object) -> None:
        other = copy.deepcopy(state)
        change(other)
        with pytest.raises(ValueError, match=match):
            run.hook.load_state_dict(other)

    for name in ("settings", "shapes", "step", "loss_scale", "buckets", "selected"):
        load_with(f"has no '{name}'", lambda s, n=name: s.pop(n))
    load_with("version 7, expected 1", lambda s: s.update(version=7))
    load_with("that of rank 1, this is rank 0", lambda s: s.update(rank=1))
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
    load_with("step -1, expected 0 or more", lambda s: s.update(step=-1))
    for scale in (0.0, -1.0, float("nan"), float("inf"), 1e60):
        load_with("loss scale: expected a positive number", lambda s, v=scale: s.update(loss_scale=v))
    bucket, chunks = state["buckets"][0], state["selected"][0]
    load_with("buckets, but selections for 1", lambda s: s.update(selected=[chunks]))
    for buckets in ([["x"]], [bucket], [bucket, bucket]):
        load_with(
            "each of the model's parameters in one bucket",
            lambda s, b=buckets: s.update(buckets=b, selected=[chunks] * len(b)),
        )
    for changed, match in (
        (chunks[:-1], r"selection has \d+ chunks, expected \d+"),
        (chunks + 2, r"selection has [23] for chunk 0, expected 0 or 1"),
        (
            torch.cat([1 - chunks[:1], chunks[1:]]),
            r"selection for step 3 has \d+ of \d+ chunks, expected \d+",
        ),
        (chunks.long(), "no tensor of torch.uint8"),
    ):
        load_with(match, lambda s, c=changed: s["selected"].__setitem__(0, c))
    numbers = [1] * len(state["selected"])
    load_with("hook's state is damaged", lambda s: s.update(buckets=numbers))
    with pytest.raises(ValueError, match="is a NoneType, expected a dict"):
        run.hook.load_state_dict(None)
    # Nothing has changed, and tensors with other strides are the same state.
    assert_same(run.hook.state_dict(), state)
    strided = [torch.stack([c, 1 - c], 1)[:, 0] for c in state["selected"]]
    run.hook.load_state_dict({**state, "selected": strided})
    assert_same(run.hook.state_dict(), state)
    cast = gft.register(DistributedDataParallel(net()), "fp16")
    with pytest.raises(ValueError, match="compression='csc'"):
        cast.load_state_dict(state)
    cast.load_state_dict(cast.state_dict())


def test_refuses_other_states() -> None:
    launch(refuse, 1)


def all_or_none(ranks: Ranks) -> None:
    run = Run()
    run.train(ranks.rank, 0, 3)
    early = run.hook.state_dict()
    run.train(ranks.rank, 3, 6)
    late = run.hook.state_dict()
    twice = {**late, "loss_scale": 2.0}
    other = copy.deepcopy(late)
    # As many chunks, but others.
    mixed = max(other["selected"], key=lambda selected: selected.float().std())
    mixed.copy_(mixed.roll(1))
    odd = ranks.rank == 1
    for bad, match in (
        (early, "the step is 3 on rank 1, but 6 on rank 0"),
        (twice, "the loss scale is 2.0 on rank 1"),
        (other, "the hash of the selected chunks"),
        ({**late, "version": 9}, "version 9" if odd else "that of rank 1 is refused: "),
    ):
        with pytest.raises(ValueError, match=match):
            run.hook.load_state_dict(bad if odd else late)
        assert_same(run.hook.state_dict(), late)
    box = [late]
    dist.broadcast_object_list(box, 0)
    with pytest.raises(ValueError, match="that of rank"):
        run.hook.load_state_dict(box[0])
    run.train(ranks.rank, 6, 7)
    cast = gft.register(DistributedDataParallel(net()), "fp16")
    state = cast.state_dict()
    with pytest.raises(ValueError, match="that of rank 1" if not odd else "version 9"):
        cast.load_state_dict({**state, "version": 9} if odd else state)


def test_all_ranks_load_their_state_or_none() -> None:
    launch(all_or_none, 3)


def back_to_the_first_step(ranks: Ranks) -> None:
    """The state's buckets are not those that DDP has built since."""
    run = Run()
    run.train(ranks.rank, 0, 1)
    first = run.state()
    run.train(ranks.rank, 1, 4)
    later = run.hook.state_dict()
    assert later["buckets"] != first["hook"]["buckets"]
    run.load(first)
    run.train(ranks.rank, 1, 6)
    now = run.hook.state_dict()
    assert now["step"] == 6 and now["buckets"] == later["buckets"]
    kept = 17 * sum(int((s == 0).sum()) for s in now["selected"])
    assert kept > 0 and any(bool(r.any()) for r in now["residual"].values())


def test_goes_back_to_the_first_step() -> None:
    launch(back_to_the_first_step, 2)


class Fails(torch.autograd.Function):
    on = False

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        if Fails.on:
            raise RuntimeError("fails midway")
        return gradient


def after_a_failure(ranks: Ranks) -> None:
    run = Run()
    run.model.module[1] = torch.nn.Sequential(run.model.module[1])
    run.train(ranks.rank, 0, 4)
    state = copy.deepcopy(run.hook.state_dict())
    run.model.module[1].register_forward_hook(lambda m, i, o: Fails.apply(o))
    Fails.on = True
    with pytest.raises(RuntimeError, match="fails midway"):
        run.train(ranks.rank, 4, 5)
    with pytest.raises(RuntimeError, match="within step 4"):
        run.hook.state_dict()
    run.hook.load_state_dict(state)
    assert_same(run.hook.state_dict(), state)
    # Operations that the failed step had started may end here.
    dist.barrier()
    assert_same(run.hook.state_dict(), state)


def test_loads_a_state_after_a_backward_that_failed() -> None:
    launch(after_a_failure, 2)
