#!/usr/bin/env python3
"""Loss and accuracy after equal samples: handwritten digits, several seeds.

  accuracy.py                         a perceptron, 2 ranks, 5 seeds
  accuracy.py --ranks 4 --sparsity 0.95

All configurations train on the same batches from the same weights, in turns,
seed by seed. `none` is one process with the whole batch. A configuration is
within noise of dense DDP over Gloo if its mean loss on the test set, over the
seeds, exceeds that of DDP by at most two standard errors of the difference.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import sys
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import report  # noqa: E402
from lib.network import Network  # noqa: E402
from lib.ranks import RankError, run_functions  # noqa: E402

EXAMPLES = (pathlib.Path(__file__).resolve().parents[2] / "integrations" /
            "torch" / "examples")
DEFAULT = ("none,gloo,gloo+fp16,gloo+powersgd,ours,ours+fp16,ours+csc,dp,"
           "dp+fp16,dp+csc")


class Settings(NamedTuple):
    names: list[str]
    seeds: int
    epochs: int
    batch: int  # Over all ranks.
    lr: float
    sparsity: float
    chunk_elements: int
    warmup: float  # Share of the steps in which sparsity rises.


def _train(settings: Settings, configuration: Any, group: Any, seed: int,
           data: Any) -> dict[str, Any]:
    import digits
    import torch
    import torch.distributed as dist
    from configurations import Recipe
    train, test = data
    alone = configuration.backend is None
    rank, size = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
    steps = settings.epochs * (len(train.labels) // settings.batch)
    network = digits.network(seed)
    trainee = configuration.build(network, group, Recipe(
        lr=settings.lr, sparsity=settings.sparsity,
        chunk_elements=settings.chunk_elements,
        warmup_steps=round(settings.warmup * steps)))
    schedule = torch.optim.lr_scheduler.LinearLR(trainee.optimizer, 1.0, 0.0,
                                                 steps)
    for epoch in range(settings.epochs):
        order = 1000 * seed + epoch
        for share in digits.batches(train, settings.batch, order, rank, size):
            trainee.optimizer.zero_grad()
            digits.loss(trainee.model, share, settings.batch, size).backward()
            trainee.optimizer.step()
            schedule.step()
    trainee.close()
    return {"configuration": configuration.name, "seed": seed,
            "identical": _identical(network), **_scores(network, train, test)}


def _identical(network: Any) -> bool:
    """Whether all ranks have the same weights, bit for bit."""
    import torch
    import torch.distributed as dist
    mine = torch.cat([p.detach().view(-1) for p in network.parameters()])
    first = mine.clone()
    dist.broadcast(first, 0)
    answers = torch.tensor(
        [torch.equal(mine.view(torch.int32), first.view(torch.int32))],
        dtype=torch.int32)
    dist.all_reduce(answers, dist.ReduceOp.MIN)
    return bool(answers.item())


def _scores(network: Any, train: Any, test: Any) -> dict[str, float]:
    import digits
    import torch
    network.eval()
    with torch.no_grad():
        losses = [torch.nn.functional.cross_entropy(
            network(part.pixels), part.labels).item()
            for part in (train, test)]
    return {"train_loss": losses[0], "test_loss": losses[1],
            "test_accuracy": digits.accuracy(network, test)}


def rank_main(rank: int, settings: Settings) -> list[dict[str, Any]]:
    sys.path.append(str(EXAMPLES))
    import digits
    import torch.distributed as dist
    from configurations import named, open_groups
    dist.init_process_group("gloo")
    configurations = named(settings.names)
    groups = open_groups(configurations)
    data = digits.load()
    rows = [_train(settings, configuration, groups[configuration.backend],
                   seed, data)
            for seed in range(1, settings.seeds + 1)
            for configuration in configurations]
    dist.destroy_process_group()
    return rows if rank == 0 else []


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def of(name: str, key: str) -> list[float]:
        return [row[key] for row in rows if row["configuration"] == name]

    def square_error(values: list[float]) -> float:
        if len(values) < 2:
            return math.nan
        return statistics.variance(values) / len(values)

    summaries = []
    for name in dict.fromkeys(row["configuration"] for row in rows):
        summary: dict[str, Any] = {
            "configuration": name, "seeds": len(of(name, "seed")),
            "identical": all(of(name, "identical"))}
        for key in ("train_loss", "test_loss", "test_accuracy"):
            values = of(name, key)
            summary[key] = statistics.fmean(values)
            summary[f"{key}_sd"] = (statistics.stdev(values)
                                    if len(values) > 1 else math.nan)
        dense = of("gloo", "test_loss")
        if dense and name != "gloo":
            summary["off"] = summary["test_loss"] - statistics.fmean(dense)
            summary["noise"] = 2 * math.sqrt(
                square_error(of(name, "test_loss")) + square_error(dense))
            summary["within_noise"] = summary["off"] <= summary["noise"]
        summaries.append(summary)
    return summaries


def parse_arguments() -> argparse.Namespace:
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--configurations", type=report.list_of(str), default=DEFAULT)
    add("--ranks", type=report.at_least(2), default=2)
    add("--seeds", type=report.at_least(1), default=5)
    add("--epochs", type=report.at_least(1), default=30)
    add("--batch", type=report.at_least(1), default=64, help="over all ranks")
    add("--lr", type=float, default=0.1, help="falls linearly to 0")
    add("--sparsity", type=float, default=0.85)
    add("--chunk-elements", type=report.at_least(1), default=64)
    add("--warmup", type=float, default=0.2,
        help="share of the steps in which the sparsity rises")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    settings = Settings(args.configurations, args.seeds,
                        args.epochs, args.batch, args.lr, args.sparsity,
                        args.chunk_elements, args.warmup)
    try:
        with Network(args.ranks) as network:
            rows = run_functions(rank_main, network, settings)[0]
    except (OSError, RankError) as error:
        sys.exit(f"accuracy: {error}")
    summaries = summarise(rows)
    print(f"\ndigits, {args.ranks} ranks, {args.epochs} epochs "
          f"of batches of {args.batch}, {args.seeds} seeds (mean +- sd), "
          f"sparsity {args.sparsity}\n")
    print(report.table(
        ["configuration", "train loss", "test loss", "test accuracy %",
         "off dense", "noise", "within", "weights"],
        [[s["configuration"], f"{s['train_loss']:.5f}",
          f"{s['test_loss']:.4f} +- {s['test_loss_sd']:.4f}",
          f"{100 * s['test_accuracy']:.2f} +- "
          f"{100 * s['test_accuracy_sd']:.2f}",
          *((f"{s['off']:+.4f}", f"{s['noise']:.4f}") if "off" in s
            else ("-", "-")),
          {True: "yes", False: "NO", None: "-"}[s.get("within_noise")],
          "identical" if s["identical"] else "DIFFERENT"]
         for s in summaries]))
    report.append_json(args.json, [
        {"benchmark": "accuracy", "network": "mlp",
         "ranks": args.ranks, "epochs": args.epochs, "batch": args.batch,
         "sparsity": args.sparsity, **s} for s in summaries])
    if not all(s["identical"] for s in summaries):
        sys.exit("accuracy: ranks ended with different weights")


if __name__ == "__main__":
    main()
