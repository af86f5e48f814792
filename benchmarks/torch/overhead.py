#!/usr/bin/env python3
"""What GradientFlow adds in Python, per step, and once at the start.

  overhead.py                    hooks, and from `import torch` to a first step
  overhead.py --parameters 5000

Hooks: a model of many small parameters takes steps. A profiler counts the calls
of Python functions of gradientflow.torch in a step and, of those, in backward,
and their time; it slows what it sees, so that time is an upper bound. "added us"
is a backward's time less that of the bare model, C++ and communication included,
alternating.

Start: new processes, in turns; seconds of importing the package (torch's own
import is not counted), of joining, of wrapping the model and of the first step.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from typing import Any

import report
from arguments import at_least, names
from network import Network
from ranks import RankError, run_ranks

PHASES = ("import", "join", "wrap", "first step")


class _Calls:
    """Calls into a package's Python files, from the thread it is used on.

    Their seconds are without those of other Python functions that they call (a
    model's forward), but with the extension's.
    """

    def __init__(self, folder: str) -> None:
        self.count = 0
        self.seconds = 0.0
        self._folder = folder
        self._ours = [False]  # Per frame.
        self._since = 0.0

    def __enter__(self) -> _Calls:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: Any, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        now = time.perf_counter()
        if self._ours[-1]:
            self.seconds += now - self._since
        if event == "call":
            ours = frame.f_code.co_filename.startswith(self._folder)
            self.count += ours
            self._ours.append(ours)
        elif len(self._ours) > 1:
            self._ours.pop()
        self._since = time.perf_counter()


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


def hooks_main(rank: int, names_: list[str], parameters: int, rounds: int,
               steps: int) -> list[dict[str, Any]]:
    import gradientflow.torch
    import torch
    import torch.distributed as dist
    from configurations import CONFIGURATIONS, Recipe, open_groups
    folder = str(pathlib.Path(gradientflow.torch.__file__).parent)
    dist.init_process_group("gloo")
    bare = _many_parameters(parameters)
    configurations = [CONFIGURATIONS[name] for name in names_]
    groups = open_groups(configurations)
    trainees = {
        c.name: c.build(_many_parameters(parameters), groups[c.backend],
                        Recipe(chunk_elements=256))
        for c in configurations}
    value = torch.ones(16)

    def backward_seconds(model: Any) -> float:
        loss = model(value)
        dist.barrier()
        begin = time.perf_counter()
        loss.backward()
        return time.perf_counter() - begin

    def turn(model: Any, optimizer: Any) -> float:
        seconds = []
        for _ in range(steps):
            optimizer.zero_grad()
            seconds.append(backward_seconds(model))
            optimizer.step()
        return report.median(seconds)

    bare_sgd = torch.optim.SGD(bare.parameters(), 1e-4)
    added: dict[str, list[float]] = {name: [] for name in names_}
    for _ in range(rounds + 1):  # The first is for buckets to be rebuilt.
        base = turn(bare, bare_sgd)
        for name, trainee in trainees.items():
            added[name].append(turn(trainee.model, trainee.optimizer) - base)
    rows = []
    for name, trainee in trainees.items():
        with _Calls(folder) as calls:
            trainee.optimizer.zero_grad()
            loss = trainee.model(value)
            before = calls.count
            loss.backward()
            in_backward = calls.count - before
            trainee.optimizer.step()
        rows.append({
            "configuration": name, "parameters": parameters,
            "python_calls": calls.count,
            "python_calls_in_backward": in_backward,
            "python_seconds": calls.seconds,
            "added_seconds": report.median(added[name][1:])})
    for trainee in trainees.values():
        trainee.close()
    dist.destroy_process_group()
    return rows if rank == 0 else []


def start_main(rank: int, name: str) -> dict[str, float]:
    import torch
    import torch.distributed as dist
    from torch import nn
    from configurations import CONFIGURATIONS, Recipe
    configuration = CONFIGURATIONS[name]
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    inputs = torch.randn(32, 64)
    # What torch starts or imports at the first use of these is torch's own.
    first = torch.optim.SGD(model.parameters(), 1e-4)
    model(inputs).sum().backward()
    first.step()
    first.zero_grad()
    moments = [time.perf_counter()]
    if configuration.backend == "gradientflow":
        import gradientflow.torch  # noqa: F401
    moments.append(time.perf_counter())
    dist.init_process_group(configuration.backend)
    moments.append(time.perf_counter())
    trainee = configuration.build(model, dist.group.WORLD,
                                  Recipe(chunk_elements=256))
    moments.append(time.perf_counter())
    trainee.optimizer.zero_grad()
    trainee.model(inputs).sum().backward()
    trainee.optimizer.step()
    moments.append(time.perf_counter())
    trainee.close()
    dist.destroy_process_group()
    return {phase: end - begin for phase, begin, end
            in zip(PHASES, moments, moments[1:])}


def measure_hooks(args: argparse.Namespace) -> list[dict[str, Any]]:
    with Network(args.ranks) as network:
        rows = run_ranks(hooks_main, network, args.configurations,
                         args.parameters, args.rounds, 10)[0]
    print(f"\nHooks: {args.parameters} parameters, {args.ranks} ranks\n")
    print(report.table(
        ["configuration", "Python calls in a step", "in backward",
         "Python us/parameter", "added us/parameter"],
        [[row["configuration"], str(row["python_calls"]),
          str(row["python_calls_in_backward"]),
          f"{1e6 * row['python_seconds'] / args.parameters:.3f}",
          f"{1e6 * row['added_seconds'] / args.parameters:.3f}"]
         for row in rows]))
    return [{"benchmark": "overhead, hooks", **row} for row in rows]


def measure_start(args: argparse.Namespace) -> list[dict[str, Any]]:
    starts: dict[str, list[dict[str, float]]] = {
        name: [] for name in args.configurations}
    for _ in range(args.rounds):
        for name in args.configurations:
            with Network(args.ranks) as network:
                per_rank = run_ranks(start_main, network, name)
            starts[name].append({phase: max(rank[phase] for rank in per_rank)
                                 for phase in PHASES})
    rows = [{"configuration": name,
             **{phase: report.median(start[phase] for start in taken)
                for phase in PHASES},
             "all": report.median(sum(start.values()) for start in taken)}
            for name, taken in starts.items()]
    # Wrapping in DDP costs seconds of torch's own.
    base = next((row["all"] for row in rows if row["configuration"] == "gloo"),
                None)
    for row in rows:
        row["over_gloo"] = None if base is None else row["all"] - base
    print(f"\nFrom torch imported to the first step done, seconds, "
          f"{args.ranks} ranks, slowest rank, {args.rounds} starts\n")
    print(report.table(
        ["configuration", *PHASES, "all", "over gloo"],
        [[row["configuration"],
          *(f"{row[phase]:.3f}" for phase in (*PHASES, "all")),
          "-" if base is None else f"{row['over_gloo']:+.3f}"]
         for row in rows]))
    return [{"benchmark": "overhead, start", **row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--configurations", type=names,
        default="gloo,ours,ours+fp16,ours+csc,dp,dp+csc")
    add("--parameters", type=at_least(1), default=1000)
    add("--ranks", type=at_least(1), default=2)
    add("--rounds", type=at_least(1), default=5)
    add("--json", type=pathlib.Path)
    args = parser.parse_args()
    try:
        rows = measure_hooks(args) + measure_start(args)
    except (OSError, RankError) as error:
        sys.exit(f"overhead: {error}")
    report.append_json(args.json, rows)


if __name__ == "__main__":
    main()
