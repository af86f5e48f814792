#!/usr/bin/env python3
"""Loss and accuracy after equal samples: handwritten digits, several seeds.

  accuracy.py                         a perceptron, 2 ranks, 5 seeds
  accuracy.py --ranks 4 --sparsity 0.95

All configurations train on the same batches from the same weights, in turns,
seed by seed. `none` is one process with the whole batch. A configuration is
within noise of dense DDP over Gloo if its mean loss on the test set, over the
seeds, exceeds that of DDP by at most two standard errors of the difference.
"""

import math
import sys
from typing import Any

import digits
import torch
import torch.distributed as dist
from configurations import CONFIGURATIONS, Configuration, Recipe, open_groups
from lib import report
from lib.network import Network
from lib.ranks import run_functions
from verify import same_everywhere


def _train(args: report.Args, configuration: Configuration, group: Any,
           seed: int, data: Any) -> report.Row:
    train, test = data
    rank, size = ((0, 1) if configuration.backend is None else
                  (dist.get_rank(), dist.get_world_size()))
    steps = args.epochs * (len(train.labels) // args.batch)
    network = digits.network(seed)
    trainee = configuration.build(network, group, Recipe(
        lr=args.lr, sparsity=args.sparsity, chunk_elements=args.chunk_elements,
        warmup_steps=round(args.warmup * steps)))
    schedule = torch.optim.lr_scheduler.LinearLR(trainee.optimizer, 1.0, 0.0,
                                                 steps)
    for epoch in range(args.epochs):
        order = 1000 * seed + epoch
        for share in digits.batches(train, args.batch, order, rank, size):
            trainee.optimizer.zero_grad()
            digits.loss(trainee.model, share, args.batch, size).backward()
            trainee.optimizer.step()
            schedule.step()
    trainee.close()
    network.eval()
    with torch.no_grad():
        train_loss, test_loss = (torch.nn.functional.cross_entropy(
            network(part.pixels), part.labels).item() for part in data)
    return {"configuration": configuration.name, "seed": seed,
            "identical": same_everywhere([p.detach() for p in
                                          network.parameters()]),
            "train_loss": train_loss,
            "test_loss": test_loss,
            "test_accuracy": digits.accuracy(network, test)}


def rank_main(rank: int, args: report.Args) -> list[report.Row]:
    groups = open_groups(args.configurations)
    data = digits.load()
    rows = [_train(args, configuration, group, seed, data)
            for seed in range(1, args.seeds + 1)
            for configuration, group in groups]
    dist.destroy_process_group()
    return rows


def summarise(rows: list[report.Row]) -> list[report.Row]:
    def of(name: str, key: str) -> list[float]:
        return [row[key] for row in rows if row["configuration"] == name]

    summaries = []
    for name in dict.fromkeys(row["configuration"] for row in rows):
        summary: report.Row = {
            "configuration": name, "seeds": len(of(name, "seed")),
            "identical": all(of(name, "identical"))}
        for key in ("train_loss", "test_loss", "test_accuracy"):
            summary |= report.mean_and_sd(of(name, key), key)
        if of("gloo", "seed") and name != "gloo":
            dense = report.mean_and_sd(of("gloo", "test_loss"), "test_loss")
            summary["off"] = summary["test_loss"] - dense["test_loss"]
            summary["noise"] = 2 * math.hypot(
                summary["test_loss_sd"], dense["test_loss_sd"]) / math.sqrt(
                    summary["seeds"])
            summary["within_noise"] = summary["off"] <= summary["noise"]
        summaries.append(summary)
    return summaries


def options(add: report.Add) -> None:
    add("--configurations", type=report.some_of(CONFIGURATIONS),
        default="none,gloo,gloo+fp16,gloo+powersgd,ours,ours+fp16,ours+csc,dp,"
        "dp+fp16,dp+csc")
    add("--ranks", type=report.at_least(2), default=2)
    add("--seeds", type=report.at_least(1), default=5)
    add("--epochs", type=report.at_least(1), default=30)
    add("--batch", type=report.at_least(1), default=64, help="over all ranks")
    add("--lr", type=float, default=0.1, help="falls linearly to 0")
    add("--sparsity", type=float, default=0.85)
    add("--chunk-elements", type=report.at_least(1), default=64)
    add("--warmup", type=float, default=0.2,
        help="share of the steps in which the sparsity rises")


@report.program(options)
def main(args: report.Args) -> None:
    with Network(args.ranks) as network:
        summaries = summarise(run_functions(rank_main, network, args)[0])
    print(f"\ndigits, {args.ranks} ranks, {args.epochs} epochs "
          f"of batches of {args.batch}, {args.seeds} seeds (mean +- sd), "
          f"sparsity {args.sparsity}\n")
    print(report.table(summaries, {
        "configuration": "{configuration}", "train loss": "{train_loss:.5f}",
        "test loss": "{test_loss:.4f} +- {test_loss_sd:.4f}",
        "test accuracy": "{test_accuracy:.2%} +- {test_accuracy_sd:.2%}",
        "off dense": "{off:+.4f}", "noise": "{noise:.4f}",
        "within": "{within_noise}", "same weights": "{identical}"}))
    report.append_json(args.json, [
        {"benchmark": "accuracy", "network": "mlp",
         "ranks": args.ranks, "epochs": args.epochs, "batch": args.batch,
         "sparsity": args.sparsity, **s} for s in summaries])
    if not all(s["identical"] for s in summaries):
        sys.exit("accuracy: ranks ended with different weights")
