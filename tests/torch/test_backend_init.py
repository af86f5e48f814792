"""The arguments of init_process_group() against the variables that launchers
left in the environment: the arguments take precedence, and ranks need only the
store that torch passes in order to meet."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from harness import Ranks, launch
from scripts import run_script

# Environments that say nothing, half of it, or something else.
LEFTOVERS = {
    "none": {},
    "WORLD_SIZE": {"WORLD_SIZE": "4"},
    "RANK": {"RANK": "7"},
    "another job": {"RANK": "1", "WORLD_SIZE": "7"},
    "MASTER_ADDR": {"MASTER_ADDR": "nowhere.invalid"},
    "MASTER_PORT": {"WORLD_SIZE": "2", "MASTER_PORT": "1"},
    "Slurm": {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"},
    "Slurm's shell": {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "5"},
    "two hosts of Open MPI": {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "launchers that disagree": {
        "WORLD_SIZE": "3",
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
    },
    "ours": {"GRADIENTFLOW_SIZE": "9"},
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _init(ranks: Ranks, how: str, port: int) -> None:
    meeting = f"{ranks.directory}/meeting"
    if how == "store":
        # Only here: a store's end takes the file away from others that meet there.
        where = {"store": dist.FileStore(meeting, ranks.size)}
    else:
        url = f"file://{meeting}" if how == "file" else f"tcp://127.0.0.1:{port}"
        where = {"init_method": url}
    dist.init_process_group(
        "gradientflow",
        rank=ranks.rank,
        world_size=ranks.size,
        timeout=timedelta(seconds=60),
        **where,
    )


def _sum_of(group: dist.ProcessGroup | None) -> float:
    tensor = torch.full((5,), float(dist.get_rank()))
    dist.all_reduce(tensor, group=group)
    return tensor[-1].item()


def _all_kinds_of_groups(ranks: Ranks, how: str, port: int) -> list[float]:
    _init(ranks, how, port)
    first = dist.new_group([0, 1])
    mesh = init_device_mesh("cpu", (ranks.size,))
    sums = [_sum_of(None), _sum_of(mesh.get_group())]
    if ranks.rank < 2:
        sums.append(_sum_of(first))
    return sums


@pytest.mark.parametrize("left", LEFTOVERS)
def test_what_the_caller_says_wins(left: str) -> None:
    args = ("tcp", _free_port())
    got = launch(_all_kinds_of_groups, 3, *args, backend=None, env=LEFTOVERS[left])
    assert got == [[3.0, 3.0, 1.0], [3.0, 3.0, 1.0], [3.0, 3.0]]


@pytest.mark.parametrize("how", ["file", "store"])
def test_other_ways_to_meet(how: str) -> None:
    env = {"WORLD_SIZE": "4", "SLURM_PROCID": "0"}
    got = launch(_all_kinds_of_groups, 2, how, 0, backend=None, env=env)
    assert got == [[1.0, 1.0, 1.0]] * 2


def _without_default(ranks: Ranks) -> float:
    """A gradientflow group, while the default group has another backend."""
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(os.path.join(ranks.directory, "meeting"), ranks.size),
        rank=ranks.rank,
        world_size=ranks.size,
    )
    return _sum_of(dist.new_group(backend="gradientflow"))


def test_a_group_beside_gloos() -> None:
    got = launch(_without_default, 2, backend=None, env={"RANK": "1"})
    assert got == [1.0, 1.0]


def test_half_of_a_launcher_is_a_warning() -> None:
    ended = run_script(
        """
        import os
        import torch
        import torch.distributed as dist
        import gradientflow.torch
        rank, size = int(os.environ.pop("RANK")), int(os.environ["WORLD_SIZE"])
        meeting = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
        dist.init_process_group(
            "gradientflow", init_method=meeting, rank=rank, world_size=size)
        dist.barrier()
        dist.destroy_process_group()
        """,
        2,
    )
    for one in ended:
        assert one.exit_code == 0, one
        assert "WORLD_SIZE is set, but RANK is not" in one.errors, one.errors
