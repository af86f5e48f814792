"""Processes forked from a rank: DataLoader's workers, os.fork, multiprocessing.

Whatever they do, the ranks' results stay right, and a rank's death is noticed
even if its children live.
"""

from __future__ import annotations

import pathlib
import textwrap

import pytest
from scripts import run_script

RANKS = 3

_CHECKED = """
import multiprocessing, os, signal, sys, time
import torch, torch.distributed as dist
import gradientflow.torch

dist.init_process_group("gradientflow")
rank = dist.get_rank()

def check():
    tensor = torch.full((5000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((5000,), 6.0)), tensor

def refused(call, *args):
    try:
        call(*args)
    except dist.DistBackendError as error:
        assert "is a fork" in str(error), error
    else:
        raise AssertionError(f"{call} was not refused")

check()
"""

_AFTER_FORK = """
child = os.fork()
if child == 0:
    signal.alarm(60)  # A hang is a failure.
    try:
{child}
    except Exception as error:
        print(f"child: {{type(error).__name__}}: {{error}}", file=sys.stderr)
        os._exit(1)
    os._exit(0)  # The end of an interpreter takes a second.
check()  # Meanwhile.
_, status = os.waitpid(child, 0)
assert status == 0, status
"""

_END = """
check()
dist.destroy_process_group()
print("fine")
"""


def _run(*parts: str, **env: str) -> None:
    for rank, ended in enumerate(run_script("\n".join(parts), RANKS, **env)):
        assert ended.exit_code == 0, f"rank {rank}: {ended.errors}"
        assert ended.output.endswith("fine\n"), f"rank {rank}: {ended.output}"


def _after_fork(child: str) -> str:
    return _AFTER_FORK.format(child=textwrap.indent(textwrap.dedent(child), " " * 8))


# A fork that ends, in whatever way, leaves the job alone.
_ENDS = [
    _after_fork(how)
    for how in (
        "sys.exit(0)",
        "os._exit(0)",
        "dist.destroy_process_group()",
        "group = dist.group.WORLD; dist.destroy_process_group(); del group",
    )
]


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
def test_a_forks_calls_are_errors_and_nobody_elses(fabric: str) -> None:
    misuse = """
        ones = torch.ones(5000)
        refused(dist.all_reduce, ones)
        refused(dist.broadcast, ones, 0)
        refused(dist.barrier)
        refused(dist.send, ones, (rank + 1) % 3)
        refused(dist.recv, ones)
        refused(dist.new_group, [0, 1, 2])
        assert torch.equal(ones, torch.ones(5000))
    """
    _run(_CHECKED, _after_fork(misuse), *_ENDS, _END, GRADIENTFLOW_FABRIC=fabric)


def test_a_fork_while_an_operation_is_under_way() -> None:
    before = """
        tensor = torch.full((3_000_000,), float(rank))
        work = dist.all_reduce(tensor, async_op=True)
        late = torch.zeros(3)
        pending = dist.irecv(late, (rank + 1) % 3)
    """
    child = """
        if not work.is_completed():
            refused(work.wait)
        refused(pending.wait)
        refused(pending.get_future)
        del work, pending
    """
    after = """
        dist.send(torch.ones(3), (rank + 2) % 3)
        pending.wait()
        assert torch.equal(late, torch.ones(3))
        work.wait()
        assert torch.equal(tensor, torch.full((3_000_000,), 3.0))
    """
    dedent = textwrap.dedent
    _run(_CHECKED, dedent(before), _after_fork(child), dedent(after), _END)


_MODEL = """
torch.manual_seed(1)
model = gradientflow.torch.DataParallel(torch.nn.Linear(64, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(inputs):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    mine = model.module.weight.grad.clone()
    want = mine.clone()
    dist.broadcast(want, 0)
    assert torch.equal(mine, want)
    optimizer.step()
"""


def test_a_forks_model_is_its_own() -> None:
    step = "train(torch.full((2, 64), rank + 1.0))"
    children = [
        "del model",
        "model.close()",
        "with torch.no_grad(): model(torch.ones(2, 64))",
        "refused(lambda: model(torch.ones(2, 64)).sum().backward())",
        # Gradients may be read, and are the fork's own to write.
        "[p.grad.fill_(1e9) for p in model.parameters()]",
        "sys.exit(0)",
    ]
    steps = [part for child in children for part in (_after_fork(child), step)]
    _run(_CHECKED, _MODEL, step, *steps, _END)


def test_multiprocessing_by_fork() -> None:
    body = """
        def body(queue):
            refused(check)
            queue.put("refused")

        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        process = context.Process(target=body, args=(queue,))
        process.start()
        check()
        assert queue.get() == "refused"
        process.join()
        assert process.exitcode == 0
    """
    _run(_CHECKED, textwrap.dedent(body), _END)


_LOADER = """
class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.full((64,), float(i + rank))

loader = torch.utils.data.DataLoader(
    Batches(), batch_size=2, num_workers=2, persistent_workers=True,
    multiprocessing_context="fork",
)
"""


def test_data_loaders_workers_then_a_death_that_is_seen_at_once(
    tmp_path: pathlib.Path,
) -> None:
    body = f"""
        for epoch in range(2):
            for batch in loader:
                train(batch)
        check()
        if rank == 2:  # Its workers wait for the next epoch.
            with open({str(tmp_path / "died")!r}, "w") as file:
                file.write(repr(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            check()
        except dist.DistBackendError as error:
            with open({str(tmp_path / "died")!r}) as file:
                print(time.monotonic() - float(file.read()))
            assert "rank 2" in str(error), error
        else:
            raise AssertionError("nobody died")
        os._exit(0)
    """
    script = "\n".join([_CHECKED, _MODEL, _LOADER, textwrap.dedent(body)])
    # Without buffers, that os._exit() would drop.
    ended = run_script(script, RANKS, PYTHONUNBUFFERED="1")
    assert ended[2].exit_code == -9
    for rank in (0, 1):
        assert ended[rank].exit_code == 0, ended[rank].errors
        # Heartbeats would tell after 30.
        assert float(ended[rank].output) < 5
