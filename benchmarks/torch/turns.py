"""Configurations take turns in the same processes; this is one rank's part.

A configuration is built for its turn and destroyed after it. So each has the
memory and the cores for itself, as in a user's job, and a slow phase of the
machine affects all. The cost of data parallelism in a step is the time up to
the end of backward, minus the same under no_sync() in the same turn.
"""

import argparse
import contextlib
import gc
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from configurations import Configuration, Recipe, open_groups
from lib.network import Network
from lib.report import Row
from torch import nn
from verify import check, mean_gradients
from workloads import Workload

WARMUP_STEPS = 3  # Buckets are rebuilt after one; PowerSGD begins after two.


def _fresh_parameters(model: nn.Module) -> None:
    """Puts new parameters on the same memory, without the hooks of the last
    turn."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                setattr(module, name, nn.Parameter(parameter.detach()))


def _of_all(value: float, op: Any) -> float:
    box = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(box, op)
    return box.item()


class Turn:
    """A configuration's turn: it is built, and taken down by close()."""

    def __init__(self, workload: Workload, recipe: Recipe,
                 configuration: Configuration, group: Any) -> None:
        self.workload, self.configuration = workload, configuration
        _fresh_parameters(workload.model)
        self.trainee = configuration.build(workload.model, group, recipe)

    def close(self) -> None:
        self.trainee.close()
        del self.trainee
        _fresh_parameters(self.workload.model)
        gc.collect()

    def measure(self, network: Network, turn_seconds: float) -> Row:
        """Takes steps for about `turn_seconds`, but at least two."""
        for _ in range(WARMUP_STEPS - 1):
            self._step()
        count = max(2, min(50, round(turn_seconds /
                                     self._seconds(self._step, 1))))
        totals = dict.fromkeys(("step", "optimizer", "alone", "sent"), 0.0)
        self._backward_alone()
        # Two halves, so that both kinds of step see the same state of the
        # machine.
        for steps in ([count // 2, count - count // 2] if count >= 4 else
                      [count]):
            self._block(steps, totals, network)
        # Loopback has one counter for all ranks.
        sharers = dist.get_world_size() if network.interface == "lo" else 1
        return {
            "configuration": self.configuration.name,
            "ddp": self.configuration.ddp, "steps": count,
            "step_seconds": totals["step"] / count,
            "optimizer_seconds": totals["optimizer"] / count,
            "added_seconds": (totals["step"] - totals["optimizer"] -
                              totals["alone"]) / count,
            "wire_bytes": _of_all(totals["sent"] / sharers / count,
                                  dist.ReduceOp.SUM) / dist.get_world_size(),
        }

    def _backward(self) -> None:
        self.trainee.optimizer.zero_grad()
        self.workload.loss(self.trainee.model).backward()

    def _backward_alone(self) -> None:
        with self.trainee.no_sync():
            self._backward()

    def _step(self) -> float:
        """Returns the seconds that the optimiser took."""
        self._backward()
        begin = time.perf_counter()
        self.trainee.optimizer.step()
        return time.perf_counter() - begin

    def _seconds(self, work: Callable[[], object], count: int) -> float:
        """Returns the seconds per call, on the slowest rank."""
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            work()
        return _of_all((time.perf_counter() - begin) / count,
                       dist.ReduceOp.MAX)

    def _block(self, steps: int, totals: dict[str, float],
               network: Network) -> None:
        optimizer_seconds: list[float] = []
        dist.barrier()
        sent = network.sent_bytes()
        seconds = self._seconds(
            lambda: optimizer_seconds.append(self._step()), steps)
        totals["sent"] += network.sent_bytes() - sent
        totals["step"] += seconds * steps
        totals["optimizer"] += sum(optimizer_seconds)
        totals["alone"] += steps * self._seconds(self._backward_alone, steps)


def rank_main(rank: int, args: argparse.Namespace, model: str,
              network: Network) -> list[Row]:
    """One rank's part of compare.py. Returns a row per turn, that of the slowest
    rank, so all return the same. Each configuration has a turn per round."""
    configurations = open_groups(args.configurations)
    recipe = Recipe(sparsity=args.sparsity, chunk_elements=args.chunk_elements)
    workload = Workload(model, seed=rank + 1)
    means = mean_gradients(workload)
    for one in configurations:
        if one[0].sends:
            plain = replace(recipe, residual="plain")
            with contextlib.closing(Turn(workload, plain, *one)) as turn:
                check(one[0], turn.trainee, workload, means)
    del means
    rows = []
    for turn_round in range(args.rounds):
        shift = turn_round % len(configurations)
        for one in configurations[shift:] + configurations[:shift]:
            with contextlib.closing(Turn(workload, recipe, *one)) as turn:
                rows.append(turn.measure(network, args.turn_seconds))
    dist.destroy_process_group()
    return rows
