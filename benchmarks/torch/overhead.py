#!/usr/bin/env python3
"""What GradientFlow adds in Python, per step.

  overhead.py --parameters 5000

A model of many small parameters takes steps. Python's profiler counts the calls
of functions of gradientflow.torch in a step, and in backward alone, and their
own time. The profiler slows the program down, so the time is an upper bound.
"""

import cProfile
import math
import pathlib
import pstats

import gradientflow.torch
import torch
import torch.distributed as dist
from configurations import CONFIGURATIONS, Recipe, open_groups
from lib import report
from lib.network import Network
from lib.ranks import run_functions
from torch import nn

FOLDER = str(pathlib.Path(gradientflow.torch.__file__).parent)


def _ours(profile: cProfile.Profile) -> tuple[int, float]:
    """Returns the calls of functions in FOLDER, and the seconds in them,
    including those of the extension, which only these functions call."""
    calls, seconds = 0, 0.0
    for (file, _, name), row in pstats.Stats(profile).stats.items():
        if file.startswith(FOLDER) or "gradientflow" in name:
            calls += row[1] if file.startswith(FOLDER) else 0
            seconds += row[2]
    return calls, seconds


class Chain(nn.Module):
    """A model of many parameters."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(16) for _ in range(count))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return math.prod(self.weights, start=value).sum()


def rank_main(rank: int, names: list[str], parameters: int) -> list[report.Row]:
    rows = []
    for configuration, group in open_groups(names):
        trainee = configuration.build(Chain(parameters), group,
                                      Recipe(chunk_elements=256))
        seconds = []
        for _ in range(10):  # After the first step DDP rebuilds its buckets.
            around, inside = cProfile.Profile(), cProfile.Profile()
            with around:
                trainee.optimizer.zero_grad()
                loss = trainee.model(torch.ones(16))
            with inside:
                loss.backward()
            with around:
                trainee.optimizer.step()
            calls, outside = _ours(around)
            in_backward, in_it = _ours(inside)
            seconds.append(outside + in_it)
        rows.append({"benchmark": "overhead, hooks",
                     "configuration": configuration.name,
                     "parameters": parameters,
                     "python_calls": calls + in_backward,
                     "python_calls_in_backward": in_backward,
                     "python_seconds": report.median(seconds)})
        trainee.close()
    dist.destroy_process_group()
    return rows


def options(add: report.Add) -> None:
    add("--configurations", type=report.some_of(CONFIGURATIONS),
        default="gloo,ours,ours+fp16,ours+csc,dp,dp+csc")
    add("--parameters", type=report.at_least(1), default=1000)
    add("--ranks", type=report.at_least(1), default=2)


@report.program(options)
def main(args: report.Args) -> None:
    with Network(args.ranks) as network:
        rows = run_functions(rank_main, network, args.configurations,
                             args.parameters)[0]
    print(f"\n{args.parameters} parameters, {args.ranks} ranks\n")
    print(report.table(
        [{**row, "us": 1e6 * row["python_seconds"] / args.parameters}
         for row in rows],
        {"configuration": "{configuration}",
         "Python calls in a step": "{python_calls}",
         "in backward": "{python_calls_in_backward}",
         "us/parameter": "{us:.3f}"}))
    report.append_json(args.json, rows)
