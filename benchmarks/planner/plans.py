"""What gradientflow_probe and gradientflow_plan say, and what steps really take.

Backward is replayed on a timer, from the profiles of benchmarks/data. The
communication between the rank processes is real.
"""

import json
import pathlib
import subprocess
from typing import Any

from lib import models, report
from lib.network import Network
from lib.ranks import RankError, program, run_commands, run_programs

Mode = dict[str, Any]
_HALF = {"pool_dtype": "float16", "wire_dtype": "float16"}
# The settings of a session, and the arguments of gradientflow_plan.
WIRES = {"dense": ({}, {"wire": "float32"}),
         "fp16": (_HALF, {"wire": "float16"}),
         "csc": ({**_HALF, "sparsity": "0.85"},
                 {"wire": "float16", "mode": "csc", "sparsity": "0.85"})}


def mode_of(wire: str, label: str, size: str) -> Mode:
    """A way to exchange, with buckets of `size` bytes, and the arguments of
    gradientflow_plan that describe it."""
    settings, plan = WIRES[wire]
    return {"name": f"{wire}, {label}", "wire": wire,
            "settings": {**settings, "bucket_bytes": size},
            "plan": {**plan, "bucket-bytes": size}}


def probe(network: Network, file: pathlib.Path, seconds: float) -> None:
    """Writes what the links give. Replayed backward computes nothing, so neither
    do the hosts meanwhile."""
    command = [program("../gradientflow/probe/gradientflow_probe"), "--no-load",
               "--seconds", str(seconds), "--out", str(file)]
    run_commands(network, "gradientflow_probe", [command] * network.ranks,
                 {"GRADIENTFLOW_FABRIC": "tcp"})


def ask(question: str, model: str, file: pathlib.Path,
        options: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Returns the tables with which gradientflow_plan answers about a model and
    a probe's file."""
    profile = models.DATA / "profiles" / f"{model}.json"
    words = [program("../gradientflow/gradientflow_plan"), question, "--profile",
             str(profile), "--probe", str(file), "--json"]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RankError(f"{' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def table_of(said: dict[str, list[dict[str, Any]]], name: str
             ) -> list[dict[str, Any]]:
    if name not in said:
        raise RankError(f"gradientflow_plan did not say '{name}'")
    return said[name]


def predict(model: str, file: pathlib.Path, plan: dict[str, str], ranks: int,
            slow_gbps: float | None = None) -> dict[str, Any]:
    """What is said of a step of so many hosts with one rank each. The line of the
    last one may be slower than the probed ones."""
    options = {**plan, "ranks": ranks, "ranks-per-host": 1}
    if slow_gbps is not None:
        options["line-gbps"] = ",".join(["0"] * (ranks - 1) + [f"{slow_gbps:g}"])
    row, = table_of(ask("predict", model, file, options), "predictions")
    return row


def measure(network: Network, model: str, modes: list[Mode], warmup: int,
            rounds: int) -> list[report.Row]:
    """The modes in turn, which are open at the same time. Returns for each the
    median of its steps, of the slowest rank, and its bucket size at the end."""
    job = {"model": models.load(model), "modes": modes, "warmup": warmup,
           "rounds": rounds, "steps": 1}
    samples = run_programs(network, "scaling/rank", job,
                           {"GRADIENTFLOW_FABRIC": "tcp"})
    rows = []
    for i in range(len(modes)):
        steps = zip(*([step["iteration_seconds"] for step in rank[i]]
                      for rank in samples))
        rows.append({"step_seconds": report.median(max(step) for step in steps),
                     "theta_bytes": samples[0][i][-1]["bucket_bytes"]})
    return rows
