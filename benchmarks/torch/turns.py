"""Configurations take turns in the same processes; this is one rank's part.

A configuration is built for its turn and destroyed after it. So each has the
memory and the cores for itself, as in a user's job, and a slow phase of the
machine affects all. The cost of data parallelism in a step is the time up to
the end of backward, minus the same under no_sync() in the same turn.
"""

from __future__ import annotations

import gc
import pathlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from configurations import (Configuration, Recipe, Trainee, named,
                            open_groups)
from torch import nn
from verify import check, mean_gradients
from workloads import Workload

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib.network import Network  # noqa: E402

WARMUP_STEPS = 3  # Buckets are rebuilt after one; PowerSGD begins after two.


@dataclass(frozen=True)
class Case:
    """What all configurations of one comparison have in common."""

    model: str
    backward_seconds: float | None
    names: tuple[str, ...]
    rounds: int
    turn_seconds: float  # About; never less than two steps.
    recipe: Recipe = field(default_factory=Recipe)


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


class Rank:
    """One rank's part; lives for one comparison."""

    def __init__(self, case: Case, network: Network) -> None:
        self.case = case
        self.network = network
        dist.init_process_group("gloo")  # For agreement; timed groups are separate.
        self.configurations = named(list(case.names))
        self.groups = open_groups(self.configurations)
        self.workload = Workload(case.model, seed=dist.get_rank() + 1,
                                 backward_seconds=case.backward_seconds)

    def run(self) -> list[dict[str, Any]]:
        """Returns a row per turn, that of the slowest rank, so all return the
        same."""
        rows = []
        means = mean_gradients(self.workload)
        for configuration in self.configurations:
            if configuration.sends:
                trainee = self._build(configuration, residual="plain")
                check(configuration, trainee, self.workload, means)
                self._take_down(trainee)
        del means
        for turn_round in range(self.case.rounds):
            shift = turn_round % len(self.configurations)
            order = (self.configurations[shift:] + self.configurations[:shift])
            for configuration in order:
                rows.append({"round": turn_round,
                             **self._turn(configuration)})
        return rows

    def close(self) -> None:
        dist.destroy_process_group()

    def _build(self, configuration: Configuration,
               **changes: Any) -> Trainee:
        _fresh_parameters(self.workload.model)
        return configuration.build(self.workload.model,
                                   self.groups[configuration.backend],
                                   replace(self.case.recipe, **changes))

    def _take_down(self, trainee: Trainee) -> None:
        trainee.close()
        trainee.model = trainee.optimizer = None  # type: ignore[assignment]
        _fresh_parameters(self.workload.model)
        gc.collect()

    def _backward(self, trainee: Trainee) -> None:
        trainee.optimizer.zero_grad()
        self.workload.loss(trainee.model).backward()

    def _backward_alone(self, trainee: Trainee) -> None:
        with trainee.no_sync():
            self._backward(trainee)

    def _step(self, trainee: Trainee) -> float:
        """Returns the seconds that the optimiser took."""
        self._backward(trainee)
        begin = time.perf_counter()
        trainee.optimizer.step()
        return time.perf_counter() - begin

    def _seconds(self, work: Callable[[], None], count: int) -> float:
        """Returns the seconds per call, on the slowest rank."""
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            work()
        return _of_all((time.perf_counter() - begin) / count,
                       dist.ReduceOp.MAX)

    def _count(self, seconds: float, least: int) -> int:
        return max(least, min(50, round(self.case.turn_seconds / seconds)))

    def _turn(self, configuration: Configuration) -> dict[str, Any]:
        trainee = self._build(configuration)
        for _ in range(WARMUP_STEPS - 1):
            self._step(trainee)
        count = self._count(self._seconds(lambda: self._step(trainee), 1), 2)

        totals = dict.fromkeys(("step", "optimizer", "alone", "sent"), 0.0)
        self._backward_alone(trainee)
        # Two halves, so that both kinds of step see the same state of the
        # machine.
        halves = [count // 2, count - count // 2] if count >= 4 else [count]
        for steps in halves:
            self._block(trainee, steps, totals)
        self._take_down(trainee)
        # Loopback has one counter for all ranks.
        sharers = (dist.get_world_size() if self.network.interface == "lo"
                   else 1)
        return {
            "configuration": configuration.name,
            "ddp": configuration.ddp,
            "steps": count,
            "step_seconds": totals["step"] / count,
            "optimizer_seconds": totals["optimizer"] / count,
            "added_seconds": (totals["step"] - totals["optimizer"] -
                              totals["alone"]) / count,
            "wire_bytes": _of_all(totals["sent"] / sharers / count,
                                  dist.ReduceOp.SUM) / dist.get_world_size(),
        }

    def _block(self, trainee: Trainee, steps: int,
               totals: dict[str, float]) -> None:
        optimizer_seconds: list[float] = []
        dist.barrier()
        sent = self.network.sent_bytes()
        seconds = self._seconds(
            lambda: optimizer_seconds.append(self._step(trainee)), steps)
        totals["sent"] += self.network.sent_bytes() - sent
        totals["step"] += seconds * steps
        totals["optimizer"] += sum(optimizer_seconds)
        totals["alone"] += steps * self._seconds(
            lambda: self._backward_alone(trainee), steps)


def rank_main(rank: int, case: Case, network: Network) -> list[dict[str, Any]]:
    """The function for run_functions()."""
    one = Rank(case, network)
    rows = one.run()
    one.close()
    return rows if rank == 0 else []
