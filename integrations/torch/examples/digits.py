"""Handwritten digits and a small network for them, which all examples use.

The data is benchmarks/data/digits.csv: 8x8 pixels from 0 to 16, and a label.
"""

from __future__ import annotations

import argparse
import csv
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

PIXELS, CLASSES = 64, 10
DATA = (pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "data" /
        "digits.csv")


class Samples(NamedTuple):
    """Pixels float32 [n, 64], 0 (white) to 1; labels int64 [n]."""

    pixels: torch.Tensor
    labels: torch.Tensor


def permutation(count: int, seed: int) -> list[int]:
    """Returns 0 to count - 1 in an order that is the same on every machine."""
    order, state, mask = list(range(count)), seed, 2**64 - 1
    for i in range(count, 1, -1):  # Fisher and Yates, by splitmix64.
        state = (state + 0x9E3779B97F4A7C15) & mask
        bits = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
        bits ^= bits >> 31
        order[i - 1], order[bits % i] = order[bits % i], order[i - 1]
    return order


def load(path: pathlib.Path = DATA) -> tuple[Samples, Samples]:
    """Returns the samples to train on, and a fixed random fifth to test on."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    table = torch.tensor([[int(cell) for cell in row] for row in rows])
    if table.shape[1] != PIXELS + 1:
        raise ValueError(f"{path}: expected {PIXELS + 1} columns, got "
                         f"{table.shape[1]}")
    order = torch.tensor(permutation(len(rows), seed=1998))
    pixels = table[order, :PIXELS].float() / 16
    labels = table[order, PIXELS]
    test = len(rows) // 5
    return (Samples(pixels[test:], labels[test:]),
            Samples(pixels[:test], labels[:test]))


def network(seed: int) -> nn.Sequential:
    """A network 64-128-128-10 with ReLU; the same seed gives the same weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(PIXELS, 128), nn.ReLU(),
                         nn.Linear(128, 128), nn.ReLU(),
                         nn.Linear(128, CLASSES))


def batches(samples: Samples, batch: int, seed: int, rank: int,
            size: int) -> Iterator[Samples]:
    """Yields this rank's share of each whole batch of an epoch. `seed` gives
    the order of the epoch, which is the same for any number of ranks."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(samples.labels), generator=generator)
    for begin in range(0, len(order) - batch + 1, batch):
        mine = order[begin + rank:begin + batch:size]
        yield Samples(samples.pixels[mine], samples.labels[mine])


def loss(model: nn.Module, share: Samples, batch: int,
         size: int) -> torch.Tensor:
    """Cross entropy, scaled so that the mean over the ranks is the mean over
    the batch, even if the ranks' shares differ by one sample."""
    total = nn.functional.cross_entropy(model(share.pixels), share.labels,
                                        reduction="sum")
    return total * size / batch


@torch.no_grad()
def accuracy(model: nn.Module, samples: Samples) -> float:
    """The share of the samples that the model classifies correctly."""
    classes = model(samples.pixels).argmax(dim=1)
    return (classes == samples.labels).float().mean().item()


def falling_rate(optimizer: torch.optim.Optimizer, rate: float,
                 args: argparse.Namespace, train: Samples,
                 begin: int = 0) -> torch.optim.lr_scheduler.LambdaLR:
    """Makes the learning rate fall linearly from `rate` to 0 over args.epochs,
    starting at epoch `begin`.

    A training that continues makes a new schedule: one from a checkpoint has
    the old end, after which the rate stays 0.
    """
    per_epoch = len(train.labels) // args.batch
    steps = args.epochs * per_epoch
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"] = rate
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: max(0.0, 1 - step / steps),
        last_epoch=begin * per_epoch - 1)


def arguments(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the command line options that all examples have."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64,
                        help="samples per step, over all ranks")
    parser.add_argument("--lr", type=float, default=0.1,
                        help="falls linearly to 0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=pathlib.Path, default=DATA)
    return parser
