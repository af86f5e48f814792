#!/usr/bin/env python3
"""What GradientFlow adds in Python, per step.

  overhead.py --parameters 5000

A model of many small parameters takes steps. Python's profiler counts the calls
of functions of gradientflow.torch in a step, and in backward alone, and their
own time. The profiler slows the program down, so the time is an upper bound.
"""

from __future__ import annotations

import cProfile
import pathlib
import pstats
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import report  # noqa: E402
from lib.network import Network  # noqa: E402
from lib.ranks import RankError, run_functions  # noqa: E402


def _ours(profile: cProfile.Profile, folder: str) -> tuple[int, float]:
    """Returns the calls of functions in `folder`, and the seconds in them,
    including those of the extension, which only these functions call."""
    calls, seconds = 0, 0.0
    for (file, _, name), row in pstats.Stats(profile).stats.items():
        if file.startswith(folder) or "gradientflow" in name:
            calls += row[1] if file.startswith(folder) else 0
            seconds += row[2]
    return calls, seconds


def _many_parameters(count: int) -> Any:
    import torch
    from torch import nn

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.ones(16)
                                            for _ in range(count))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                value = value * weight
            return value.sum()

    return Chain()


def rank_main(rank: int, names: list[str],
              parameters: int) -> list[dict[str, Any]]:
    import gradientflow.torch
    import torch
    import torch.distributed as dist
    from configurations import Recipe, named, open_groups
    folder = str(pathlib.Path(gradientflow.torch.__file__).parent)
    dist.init_process_group("gloo")
    configurations = named(names)
    groups = open_groups(configurations)
    value = torch.ones(16)
    rows = []
    for configuration in configurations:
        trainee = configuration.build(
            _many_parameters(parameters), groups[configuration.backend],
            Recipe(chunk_elements=256))
        seconds = []
        for _ in range(10):  # After the first step DDP rebuilds its buckets.
            around, inside = cProfile.Profile(), cProfile.Profile()
            with around:
                trainee.optimizer.zero_grad()
                loss = trainee.model(value)
            with inside:
                loss.backward()
            with around:
                trainee.optimizer.step()
            calls, outside = _ours(around, folder)
            in_backward, in_it = _ours(inside, folder)
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


def main() -> None:
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--configurations", type=report.list_of(str),
        default="gloo,ours,ours+fp16,ours+csc,dp,dp+csc")
    add("--parameters", type=report.at_least(1), default=1000)
    add("--ranks", type=report.at_least(1), default=2)
    args = parser.parse_args()
    try:
        with Network(args.ranks) as network:
            rows = run_functions(rank_main, network, args.configurations,
                                 args.parameters)[0]
    except (OSError, RankError) as error:
        sys.exit(f"overhead: {error}")
    print(f"\n{args.parameters} parameters, {args.ranks} ranks\n")
    print(report.table(
        ["configuration", "Python calls in a step", "in backward",
         "us/parameter"],
        [[row["configuration"], str(row["python_calls"]),
          str(row["python_calls_in_backward"]),
          f"{1e6 * row['python_seconds'] / args.parameters:.3f}"]
         for row in rows]))
    report.append_json(args.json, rows)


if __name__ == "__main__":
    main()
