#!/usr/bin/env python3
"""What GRADIENTFLOW_PROFILE adds to a step of DDP with a hook.

  profiling.py --parameters 161 --step-ms 206

A model of small parameters takes steps in one process, in rounds: some without a
profile and some with one, in turn. What a profile costs depends on the number of
parameters, not on their size, so it is compared with the step of a real model:
by default ResNet-50's, of one V100.
"""

import os
import pathlib
import tempfile
import time

import torch
import torch.distributed as dist
from configurations import Recipe, Trainee, open_groups
from lib import report
from lib.network import Network
from lib.ranks import run_functions
from overhead import Chain


def take_steps(trainee: Trainee, steps: int) -> float:
    """Returns the seconds of one."""
    begin = time.perf_counter()
    for _ in range(steps):
        trainee.optimizer.zero_grad()
        trainee.model(torch.ones(16)).backward()
        trainee.optimizer.step()
    return (time.perf_counter() - begin) / steps


def rank_main(rank: int, parameters: int, rounds: int, steps: int,
              file: str) -> list[list[float]]:
    (configuration, group), = open_groups(["ours+fp16"])
    trainees = []
    for path in ("", file):
        os.environ["GRADIENTFLOW_PROFILE"] = path
        trainees.append(configuration.build(Chain(parameters), group, Recipe()))
    for trainee in trainees:  # Until the file has been written after 64 steps.
        take_steps(trainee, 70)
    seconds = [[take_steps(trainee, steps) for trainee in trainees]
               for _ in range(rounds)]
    dist.destroy_process_group()
    return seconds


def options(add: report.Add) -> None:
    add("--parameters", type=report.at_least(1), default=161)
    add("--step-ms", type=float, default=206.0, help="of the real model")
    add("--rounds", type=report.at_least(5), default=15)
    add("--steps", type=report.at_least(1), default=50, help="of a round")


@report.program(options)
def main(args: report.Args) -> None:
    with tempfile.TemporaryDirectory() as folder, Network(1) as network:
        file = pathlib.Path(folder) / "profile.json"
        seconds = run_functions(rank_main, network, args.parameters, args.rounds,
                                args.steps, str(file))[0]
        if not file.exists():
            raise RuntimeError("no profile was written")
    added = report.median(with_it - without for without, with_it in seconds)
    plain = report.median(without for without, _ in seconds)
    row = {"benchmark": "profiling, hook", "parameters": args.parameters,
           "rounds": args.rounds, "added_us": 1e6 * added, "plain_us": 1e6 * plain,
           "step_ms": args.step_ms, "percent": 1e5 * added / args.step_ms}
    print("a profile adds {added_us:.1f} us to a step of {plain_us:.0f} us with "
          "{parameters} parameters: {percent:.3f} % of a step of {step_ms:.0f} ms "
          "(target: <= 1 %)".format_map(row))
    report.append_json(args.json, [row])
