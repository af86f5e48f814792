#!/usr/bin/env python3
"""Data-parallel training on real data, with gradients sent in full and
sparsely.

A small network learns handwritten digits on rank processes of this machine,
with the same recipe and seeds for every way to exchange gradients. All ranks
must end with the same weights, bit for bit.
"""

import statistics
import time
import zlib

import numpy
from lib import models, report
from lib.library import Communicator, Session
from lib.network import Network
from lib.ranks import run_functions
from perceptron import Digits, Random, load
from perceptron import Network as Perceptron

# FP16 as in mixed precision, with a loss scale.
_HALF = {"wire_dtype": "float16", "loss_scale": "256"}
EXCHANGES = {"dense FP32": {}, "dense FP16": _HALF,
             "CSC 85 % + FP16": {**_HALF, "sparsity": "0.85"},
             "CSC 95 % + FP16": {**_HALF, "sparsity": "0.95"}}
TRAINING_IMAGES = 1438
WIDTHS = [64, 128, 128, 10]
MOMENTUM = 0.9
SPLIT_SEED = 1998


def train(args: report.Args, settings: dict[str, str],
          data: tuple[Digits, Digits], seed: int) -> dict[str, float]:
    """This rank's part of one training. Per step: a share of the batch ->
    backward() writes into the pool -> ready() -> finish_step() ->
    optimizer_step()."""
    images, test = data
    comm = Communicator({**settings, "job_token": f"training {seed}"})
    order, network = Random(seed), Perceptron(WIDTHS, seed ^ 0x5EED)
    session = Session(comm, network.tensors)
    gradients = [numpy.frombuffer(of, numpy.float32).reshape(tensor.shape)
                 for of, tensor in zip(session.gradients, network.tensors)]
    steps, sent = args.epochs * (len(images.labels) // args.batch), 0
    # With this scale the mean over the ranks is the mean over the batch, even if
    # the ranks' shares of it differ by one image.
    scale = float(settings.get("loss_scale", 1)) * comm.size / args.batch
    shuffled: list[int] = []
    began = time.perf_counter()
    for step in range(steps):
        if len(shuffled) < args.batch:  # Whole batches only.
            shuffled = order.permutation(len(images.labels))
        share = shuffled[comm.rank:args.batch:comm.size]
        del shuffled[:args.batch]
        network.forward(Digits(images.pixels[share], images.labels[share]))
        network.backward(scale, gradients, session.ready)
        sent += session.finish_step()
        session.optimizer_step(args.lr * (1 - step / steps), MOMENTUM)
    seconds = time.perf_counter() - began
    comm.expect_same(zlib.crc32(b"".join(map(bytes, network.tensors))))
    session.close()
    comm.close()
    loss = network.forward(images)
    network.forward(test)
    return {"train_loss": loss / len(images.labels),
            "test_accuracy": network.correct / len(test.labels),
            "bytes_per_step": sent / steps, "seconds": seconds}


def rank_main(rank: int, args: report.Args,
              settings: dict[str, str]) -> list[dict[str, float]]:
    data = load(models.DATA / "digits.csv", SPLIT_SEED)
    return [train(args, settings, data, seed)
            for seed in range(1, args.seeds + 1)]


def summarise(name: str, runs: list[list[dict[str, float]]]) -> report.Row:
    """Summarises the `runs` of one configuration, [rank][seed]. Loss and
    accuracy belong to the weights, which are the same on every rank."""
    def mean(key: str) -> float:
        return statistics.fmean(run[key] for rank in runs for run in rank)

    return {"benchmark": "training", "configuration": name,
            "ranks": len(runs), "seeds": len(runs[0]),
            "train_loss": mean("train_loss"),
            **report.mean_and_sd([run["test_accuracy"] for run in runs[0]],
                                 "test_accuracy"),
            "bytes_per_step_per_rank": mean("bytes_per_step"),
            "seconds": mean("seconds")}


def run_exchange(args: report.Args, name: str,
                 ranks: int) -> report.Row:
    steps = args.epochs * (TRAINING_IMAGES // args.batch)
    settings = {**EXCHANGES[name], "momentum": str(MOMENTUM),
                "chunk_elements": str(args.chunk_elements),
                # The sparsity rises in the first twentieth of the steps.
                "warmup_steps": str(steps // 20)}
    with Network(ranks) as network:
        return summarise(name, run_functions(
            rank_main, network, args, settings,
            environment={"GRADIENTFLOW_FABRIC": args.fabric}))


def options(add: report.Add) -> None:
    add("--ranks", type=report.at_least(2), default=4)
    add("--seeds", type=report.at_least(1), default=5)
    add("--fabric", choices=("auto", "shm", "tcp"), default="tcp")
    add("--epochs", type=report.at_least(1), default=30)
    add("--batch", type=int, choices=range(1, TRAINING_IMAGES + 1), default=64,
        metavar="IMAGES", help="of all ranks together")
    add("--lr", type=float, default=0.1, help="falls linearly to 0")
    add("--chunk-elements", type=report.at_least(1), default=256)


@report.program(options)
def main(args: report.Args) -> None:
    runs = [("dense FP32", 1), *((name, args.ranks) for name in EXCHANGES)]
    rows = [run_exchange(args, name, ranks) for name, ranks in runs]
    print(f"\nHandwritten digits, {args.epochs} epochs, batch {args.batch} over "
          f"all ranks, momentum SGD,\n{args.seeds} seeds (mean +- sd); weights "
          "are the same on every rank.\n")
    lines, dense = [], rows[1]
    for row in rows:
        sent = row["bytes_per_step_per_rank"]  # One rank alone sends nothing.
        lines.append({
            **row, "off": row["test_accuracy"] - dense["test_accuracy"],
            "saving": dense["bytes_per_step_per_rank"] / sent if sent else None})
    print(report.table(
        lines,
        {"configuration": "{configuration}", "ranks": "{ranks}",
         "train loss": "{train_loss:.5f}",
         "test accuracy": "{test_accuracy:.2%} +- {test_accuracy_sd:.2%}",
         "vs dense": "{off:+.2%}",
         "bytes/step/rank": "{bytes_per_step_per_rank:.0f}",
         "saving": "{saving:.1f}x", "seconds": "{seconds:.2f}"}))
    report.append_json(args.json, rows)
