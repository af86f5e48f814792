"""DataParallel in real jobs: launchers, ends of processes, deaths, leaks."""

from __future__ import annotations

import gc
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from harness import Ranks, _free_port, launch, run
from parallel_models import batch, bits_of, net, with_csc

SCRIPT = """
import os
import torch
import gradientflow.torch as gft

torch.manual_seed(int(os.environ["RANK"]))
models = [gft.DataParallel(torch.nn.Linear(5, 3)) for _ in range(2)]
for model in models:
    x = torch.full((2, 5), float(model.rank + 1))
    model(x).sum().backward()
    assert model.module.weight.grad.eq(2 * (1 + model.size) / 2).all()
# One write: lines of several ranks do not mix.
print(f"rank {model.rank} of {model.size} is well\\n", end="", flush=True)
"""


def test_under_torchrun_with_no_process_group(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3",
            f"--master-port={_free_port()}", "--monitor-interval=0.1", str(script),
        ],
        capture_output=True, text=True, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    lines = sorted(ended.stdout.split("\n"))
    assert lines == ["", *(f"rank {rank} of 3 is well" for rank in range(3))]


def with_launcher_variables(ranks: Ranks, port: int, names: tuple[str, str]) -> bytes:
    os.environ[names[0]] = str(ranks.rank)
    os.environ[names[1]] = str(ranks.size)
    os.environ["GRADIENTFLOW_RENDEZVOUS"] = f"127.0.0.1:{port}"
    model = gft.DataParallel(net(ranks.rank))
    assert (model.rank, model.size) == (ranks.rank, ranks.size)
    inputs, targets = batch(0, ranks.rank)
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    return model.module[0].weight.grad.numpy().tobytes()


@pytest.mark.parametrize(
    "names",
    [
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ],
)
def test_launchers_variables(names: tuple[str, str]) -> None:
    seen = launch(with_launcher_variables, 3, _free_port(), names, backend=None)
    assert len(set(seen)) == 1


@pytest.mark.parametrize("how", ["open", "after a failed backward", "in a group"])
def test_the_interpreter_ends_well(how: str) -> None:
    script = """
import torch, torch.distributed as dist
import gradientflow.torch as gft
how = %r
if how == "in a group":
    store = dist.HashStore()
    dist.init_process_group("gradientflow", store=store, rank=0, world_size=1)
model = gft.DataParallel(torch.nn.Linear(5, 3))
optimizer = gft.SGD(model, 0.1)
model(torch.ones(2, 5)).sum().backward()
optimizer.step()
gradient = model.module.weight.grad
if how == "after a failed backward":
    output = model(torch.ones(2, 5))
    model.module.weight.register_hook(lambda g: 1 / 0)
    try:
        output.sum().backward()
    except ZeroDivisionError:
        print("failed as it should")
"""
    ended = subprocess.run(
        [sys.executable, "-c", script % how],
        capture_output=True, text=True, timeout=100,
        env={**os.environ, "GRADIENTFLOW_RANK": "0", "GRADIENTFLOW_SIZE": "1"},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")


def die_in_a_step(ranks: Ranks, kind: str) -> float:
    if kind == "DataParallel":
        model: torch.nn.Module = gft.DataParallel(net())
    else:
        model = DistributedDataParallel(net(), bucket_cap_mb=1e-3)
        gft.register(model, **with_csc(kind, chunk_elements=20))
    with pytest.raises(dist.DistBackendError, match="rank 1") as caught:
        for step in range(10_000):
            loss = model(batch(step, ranks.rank)[0]).square().sum()
            if step == 3 and ranks.rank == 1:
                ranks.started("dying")
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
    now = time.monotonic()
    assert step == 3, caught.value
    ranks.wait_for("dying", [1])
    return now - ranks.time_of("dying", 1)


@pytest.mark.parametrize("kind", ["DataParallel", "fp16", "csc"])
def test_a_death_is_known_to_all(kind: str) -> None:
    outcomes = run(die_in_a_step, 3, kind, destroy=False)
    assert outcomes[1].signal == signal.SIGKILL
    for rank in (0, 2):
        assert outcomes[rank].ok, outcomes[rank]
        # Known in 0.2 s; the rest is for cores that are busy with other things.
        assert outcomes[rank].value < 5


def resident_bytes() -> int:
    pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def many_steps(ranks: Ranks) -> int:
    models = [
        gft.DataParallel(net()),
        gft.DataParallel(net(), compression="csc", sparsity=0.5, chunk_elements=50),
        DistributedDataParallel(net()),
        DistributedDataParallel(net()),
    ]
    gft.register(models[2], "fp16")
    gft.register(models[3], "csc", sparsity=0.5, chunk_elements=50)
    inputs = batch(0, ranks.rank)[0]
    before = 0
    for step in range(3000):
        if step == 1500:
            before = resident_bytes()
        for model in models:
            model.zero_grad()
            model(inputs).sum().backward()
    return resident_bytes() - before


def test_steps_leak_nothing() -> None:
    assert max(launch(many_steps, 2)) < 1 << 20


def many_models(ranks: Ranks) -> tuple[int, int, int]:
    def state() -> tuple[int, int, int]:
        gc.collect()
        threads = len(os.listdir("/proc/self/task"))
        return resident_bytes(), len(os.listdir("/proc/self/fd")), threads

    def one(explicit: bool) -> None:
        model = gft.DataParallel(net())
        model(batch(0, ranks.rank)[0]).sum().backward()
        if explicit:
            model.close()

    for turn in range(60):
        if turn == 20:
            before = state()
        one(turn % 2 == 0)
    return tuple(b - a for a, b in zip(before, state()))


def test_models_leak_nothing() -> None:
    for more_bytes, more_files, more_threads in launch(many_models, 2, backend="gloo"):
        assert more_bytes < 4 << 20
        assert more_files <= 0
        assert more_threads <= 0


def closed(ranks: Ranks) -> list[bytes]:
    """After close() the module goes on by itself."""
    model = gft.DataParallel(net())
    model.close()
    module = model.module
    module(batch(0, ranks.rank)[0]).sum().backward()
    return bits_of(module)


def test_a_module_outlives_its_wrapper() -> None:
    launch(closed, 2)
