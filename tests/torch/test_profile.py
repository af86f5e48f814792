"""GRADIENTFLOW_PROFILE: of a DDP with a hook, and of DataParallel."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import statistics
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import batch, loss_of, net
from scripts import LEAVE, run_script

STEPS = 20
LEFT_OUT = 2  # At the beginning.
NAMES = ["4.bias", "4.weight", "2.bias", "2.weight", "0.bias", "0.weight"]


def ask_for_profile(ranks: Ranks, name: str = "profile.json") -> pathlib.Path:
    path = pathlib.Path(ranks.directory) / name
    os.environ["GRADIENTFLOW_PROFILE"] = str(path)
    os.environ["GRADIENTFLOW_PROFILE_BATCH"] = "4"
    return path


def ours(ranks: Ranks, compression: str, **modes: Any) -> DistributedDataParallel:
    model = DistributedDataParallel(net(), **modes)
    gft.register(model, compression)
    return model


class Watch:
    """What a program can see of its steps: when hooks of tensors ran."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.steps: list[dict[str, float]] = []
        for name, parameter in model.named_parameters():

            def seen(_: torch.Tensor, name: str = name) -> None:
                self.mark(name)

            parameter.register_hook(seen)

    def mark(self, what: str) -> None:
        self.steps[-1][what] = time.perf_counter()


def watched_steps(ranks: Ranks, model: Any, optimizer: Any) -> list[dict[str, float]]:
    watch = Watch(model.module)
    for step in range(STEPS):
        watch.steps.append({})
        optimizer.zero_grad()
        loss = loss_of(model, step, ranks.rank)
        watch.mark("forward is over")
        loss.backward()
        watch.mark("backward is over")
        optimizer.step()
        watch.mark("over")
    return watch.steps


def check(profile: dict[str, Any], steps: list[dict[str, float]]) -> None:
    """Compares medians with those of bounds, step by step."""
    seen = steps[LEFT_OUT:]
    assert profile["steps"] == len(seen)

    def at_most(value: float, later: str, earlier: str) -> None:
        bound = statistics.median(step[later] - step[earlier] for step in seen)
        assert value <= bound + 1e-6, f"{value} > {later} - {earlier} = {bound}"

    def at_least(value: float, later: str, earlier: str) -> None:
        bound = statistics.median(step[later] - step[earlier] for step in seen)
        assert value >= bound - 1e-6, f"{value} < {later} - {earlier} = {bound}"

    # A gradient is ready between the hook of its tensor and the next one's.
    moments = [*NAMES, "backward is over"]
    for name, following, tensor in zip(NAMES, moments[1:], profile["tensors"]):
        assert tensor["name"] == name
        ready = tensor["ready_seconds"]
        assert ready["lower_quartile"] <= ready["median"] <= ready["upper_quartile"]
        at_most(ready["median"], following, NAMES[0])
        if name != NAMES[0]:
            at_least(ready["median"], name, NAMES[1])
    backward = profile["backward_seconds"]["median"]
    assert backward == pytest.approx(profile["tensors"][-1]["ready_seconds"]["median"])
    wait = profile["wait_seconds"]["median"]
    assert wait > 0
    at_most(wait, "backward is over", NAMES[-1])
    assert profile["forward_seconds"]["median"] > 0
    # Whatever the optimiser does besides its step is forward's.
    optimizer = profile["optimizer_seconds"]["median"]
    at_most(optimizer, "over", "backward is over")
    assert optimizer > 0
    at_least(profile["step_seconds"]["median"], NAMES[-1], "forward is over")


def hook_profile(ranks: Ranks, compression: str) -> None:
    path = ask_for_profile(ranks)
    model = ours(ranks, compression)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    steps = watched_steps(ranks, model, optimizer)
    if ranks.rank == 0:
        # After so many steps it is there, whatever comes.
        assert json.loads(path.read_text())["steps"] == 16
    del model
    gc.collect()
    dist.barrier()
    profile = json.loads(path.read_text())
    assert profile["batch_samples"] == 4
    assert (profile["device"], profile["dtype"]) == ("cpu", "float32")
    assert profile["ranks"] == ranks.size
    assert ("rank_spread_fraction" in profile) == (ranks.size > 1)
    if ranks.rank == 0:
        check(profile, steps)


@pytest.mark.parametrize(
    ("size", "compression", "backend"),
    [(1, "fp16", "gloo"), (2, "csc", "gradientflow"), (2, "fp16", "gloo")],
)
def test_hook_has_the_times_of_its_steps(
    size: int, compression: str, backend: str
) -> None:
    launch(hook_profile, size, compression, backend=backend)


def data_parallel_profile(ranks: Ranks) -> None:
    path = pathlib.Path(ranks.directory) / "profile.json"
    model = gft.DataParallel(
        net(), options={"profile": str(path), "profile_batch": "32"}
    )
    optimizer = gft.SGD(model, 0.05, 0.9)
    steps = watched_steps(ranks, model, optimizer)
    model.close()
    dist.barrier()
    profile = json.loads(path.read_text())
    assert profile["batch_samples"] == 32
    assert (profile["device"], profile["dtype"]) == ("cpu", "float32")
    assert profile["ranks"] == ranks.size
    assert profile["steps"] == len(steps) - LEFT_OUT
    # A session knows the shapes, too: "0.weight float32 [37, 13]" or so.
    assert [tensor["name"].split()[0] for tensor in profile["tensors"]] == NAMES
    assert profile["tensors"][-1]["elements"] == 13 * 37
    optimizers = [step["over"] - step["backward is over"] for step in steps]
    seconds = profile["optimizer_seconds"]["median"]
    assert 0 < seconds <= statistics.median(optimizers[LEFT_OUT:])


def test_data_parallel_has_its_batch_and_its_steps() -> None:
    launch(data_parallel_profile, 2)


def accumulated(ranks: Ranks) -> float:
    """Steps of two passes, of which the first exchanges nothing; the update runs
    the passes itself."""
    path = ask_for_profile(ranks)
    model = ours(ranks, "fp16", bucket_cap_mb=1e-3)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    first_passes = []
    for step in range(STEPS):

        def both(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            begin = time.perf_counter()
            with model.no_sync():
                loss_of(model, step, ranks.rank).backward()
            first_passes.append(time.perf_counter() - begin)
            loss = loss_of(model, step, ranks.rank)
            loss.backward()
            return loss

        optimizer.step(both)
    del model, both
    gc.collect()
    profile = json.loads(path.read_text())
    assert profile["steps"] == STEPS - LEFT_OUT
    assert profile["optimizer_seconds"]["median"] == 0
    forward = profile["forward_seconds"]["median"]
    assert forward >= statistics.median(first_passes[LEFT_OUT:])
    return forward


def test_passes_that_exchange_nothing_are_a_part_of_forward() -> None:
    launch(accumulated, 1, backend="gloo")


def uneven(ranks: Ranks) -> int:
    path = ask_for_profile(ranks)
    model = ours(ranks, "csc")
    with Join([model]):
        # In the meantime rank 1 shadows rank 0's steps, and what is told in them.
        for step in range(24 if ranks.rank == 0 else 4):
            model(batch(step, ranks.rank)[0]).square().sum().backward()
    del model
    gc.collect()
    dist.barrier()
    return json.loads(path.read_text())["steps"]


@pytest.mark.parametrize("backend", ["gloo", "gradientflow"])
def test_ranks_may_have_different_numbers_of_steps(backend: str) -> None:
    assert launch(uneven, 2, backend=backend) == [22, 22]


def refusals(ranks: Ranks) -> list[str]:
    texts = []

    def refused(model: torch.nn.Module) -> None:
        ddp = DistributedDataParallel(model)
        with pytest.raises(ValueError) as caught:
            gft.register(ddp, "fp16")
        texts.append(str(caught.value))

    ask_for_profile(ranks, "no/such/folder/profile.json")
    refused(net())
    ask_for_profile(ranks)
    mixed = net()
    mixed[0].double()
    refused(mixed)
    refused(net().double())
    if ranks.rank == 1:
        del os.environ["GRADIENTFLOW_PROFILE"]
    refused(net())
    return texts


def test_says_on_all_ranks_what_cannot_be() -> None:
    texts = launch(refusals, 2, backend="gloo")
    assert texts[0] == texts[1]
    folder, mixed, double, one = texts[0]
    assert "rank 0: GRADIENTFLOW_PROFILE: profile: cannot write" in folder
    assert "'2.weight' is Float on cpu, '0.weight' Double on cpu" in mixed
    assert "expected gradients of float32, float16 or bfloat16, seen Double" in double
    assert "GRADIENTFLOW_PROFILE is None on rank 1" in one


def forked(ranks: Ranks) -> None:
    path = ask_for_profile(ranks)
    model = ours(ranks, "fp16")
    for step in range(9):
        loss_of(model, step, 0).backward()
    child = os.fork()
    if child == 0:
        del model
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert json.loads(path.read_text())["steps"] == 4
    del model
    gc.collect()
    assert json.loads(path.read_text())["steps"] == 9 - LEFT_OUT


def test_is_of_the_process_that_trains() -> None:
    launch(forked, 1, backend="gloo")


# Two models one after another, each of which has an evaluation before it trains.
TRAIN = """
import torch, torch.distributed as dist
import gradientflow.torch as gft
dist.init_process_group("{backend}")
for _ in range(2):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    with torch.no_grad():
        model(torch.ones(1, 3))
    {register}
    for _ in range(6):
        model(torch.ones(1, 3)).sum().backward()
    del model
dist.destroy_process_group()
"""


def train_script(backend: str, register: str = "pass") -> str:
    code = TRAIN.format(backend=backend, register=register)
    return code + LEAVE if backend == "gloo" else code


@pytest.mark.parametrize("backend", ["gradientflow", "gloo"])
def test_says_once_that_a_model_without_a_hook_has_none(
    backend: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "profile.json"
    first, second = run_script(train_script(backend), 2, GRADIENTFLOW_PROFILE=str(file))
    assert (first.exit_code, second.exit_code) == (0, 0), first.errors
    assert first.errors.count("GRADIENTFLOW_PROFILE: no profile is written") == 1
    assert "gradientflow.torch.register(ddp, 'fp16')" in first.errors
    assert "GRADIENTFLOW_PROFILE" not in second.errors
    assert not file.exists()


@pytest.mark.parametrize("env", [{"GRADIENTFLOW_PROFILE": ""}, {}])
def test_says_nothing_if_none_is_wanted(env: dict[str, str]) -> None:
    (ended,) = run_script(train_script("gloo"), 1, **env)
    assert (ended.exit_code, ended.errors.count("GRADIENTFLOW_PROFILE")) == (0, 0)


def test_says_nothing_if_there_is_one(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "profile.json"
    code = train_script("gloo", "gft.register(model, 'fp16')")
    (ended,) = run_script(code, 1, GRADIENTFLOW_PROFILE=str(file))
    assert (ended.exit_code, ended.errors.count("no profile")) == (0, 0), ended.errors
    assert file.exists()
