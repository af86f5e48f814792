"""Finds this process's rank, under torchrun, mpirun and srun alike.

torch.distributed reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT. torchrun sets them; this module derives them from the variables of
Open MPI and Slurm.
"""

from __future__ import annotations

import os
import subprocess
import zlib

# The columns: rank, ranks, rank on the host, ranks on the host, name of the
# job.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
     "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID"),
)


def environment() -> tuple[int, int]:
    """Completes the variables in os.environ; returns the rank and the number of
    ranks.

    Without a launcher this process is the whole job. Variables that are already
    set are left alone. Raises RuntimeError if several hosts take part and
    nothing says which of them is the first.
    """
    env = os.environ
    if "RANK" not in env:
        for rank, size, local_rank, local_size, job in _LAUNCHERS:
            if rank in env and size in env:
                env["RANK"], env["WORLD_SIZE"] = env[rank], env[size]
                env.setdefault("LOCAL_RANK", env.get(local_rank, "0"))
                one_host = env.get(local_size) == env[size]
                env.setdefault("MASTER_ADDR", _first_host(one_host))
                # The same on all ranks, and different for the next job.
                number = zlib.crc32(env.get(job, "").encode())
                env.setdefault("MASTER_PORT", str(20000 + number % 10000))
                break
        else:
            env["RANK"], env["WORLD_SIZE"] = "0", "1"
            env.setdefault("MASTER_ADDR", "127.0.0.1")
            env.setdefault("MASTER_PORT", "29500")
    return int(env["RANK"]), int(env["WORLD_SIZE"])


def _first_host(one_host: bool) -> str:
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if one_host or os.environ.get("SLURM_NNODES") == "1":
        return "127.0.0.1"
    if nodes:
        names = subprocess.run(["scontrol", "show", "hostnames", nodes],
                               check=True, capture_output=True, text=True)
        return names.stdout.split()[0]
    raise RuntimeError("launch: several hosts: expected MASTER_ADDR to name "
                       "that of rank 0 (mpirun -x MASTER_ADDR=...)")
