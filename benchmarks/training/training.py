#!/usr/bin/env python3
"""Data-parallel training on real data, with gradients sent in full and
sparsely.

A small network learns handwritten digits on rank processes of this machine,
with the same recipe and seeds for every way to exchange gradients. All ranks
must end with the same weights, bit for bit.
"""

from __future__ import annotations

import argparse
import statistics

from lib import models, report
from lib.network import Network
from lib.ranks import run_programs

# FP16 as in mixed precision, with a loss scale.
_HALF = {"wire_dtype": "float16", "loss_scale": "256"}
EXCHANGES = {"dense FP32": {}, "dense FP16": _HALF,
             "CSC 85 % + FP16": {**_HALF, "sparsity": "0.85"},
             "CSC 95 % + FP16": {**_HALF, "sparsity": "0.95"}}
TRAINING_IMAGES = 1438


def summarise(name: str, runs: list[list[dict[str, float]]]) -> report.Row:
    """Summarises the `runs` of one configuration, [rank][seed]. Loss and
    accuracy belong to the weights, which are the same on every rank."""
    def mean(key: str) -> float:
        return statistics.fmean(run[key] for rank in runs for run in rank)

    accuracies = [run["test_accuracy"] for run in runs[0]]
    return {"benchmark": "training", "configuration": name,
            "ranks": len(runs), "seeds": len(accuracies),
            "train_loss": mean("train_loss"),
            "test_accuracy": statistics.fmean(accuracies),
            "test_accuracy_sd": (statistics.stdev(accuracies)
                                 if len(accuracies) > 1 else 0.0),
            "bytes_per_step_per_rank": mean("bytes_per_step"),
            "seconds": mean("seconds")}


def run_exchange(args: argparse.Namespace, name: str,
                 ranks: int) -> report.Row:
    recipe = {"widths": [64, 128, 128, 10], "epochs": args.epochs,
              "batch": args.batch, "lr": args.lr, "momentum": 0.9}
    steps = args.epochs * (TRAINING_IMAGES // args.batch)
    settings = {**EXCHANGES[name], "momentum": "0.9",
                "chunk_elements": str(args.chunk_elements),
                # The sparsity rises in the first twentieth of the steps.
                "warmup_steps": str(steps // 20)}
    job = {"data": str(models.DATA / "digits.csv"), "settings": settings,
           "recipe": recipe, "seeds": args.seeds}
    with Network(ranks) as network:
        return summarise(name, run_programs(
            network, "training/rank", job,
            {"GRADIENTFLOW_FABRIC": args.fabric}))


@report.program
def main() -> None:
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--ranks", type=report.at_least(2), default=4)
    add("--seeds", type=report.at_least(1), default=5)
    add("--fabric", choices=("auto", "shm", "tcp"), default="tcp")
    add("--epochs", type=report.at_least(1), default=30)
    add("--batch", type=int, choices=range(1, TRAINING_IMAGES + 1), default=64,
        metavar="IMAGES", help="of all ranks together")
    add("--lr", type=float, default=0.1, help="falls linearly to 0")
    add("--chunk-elements", type=report.at_least(1), default=256)
    args = parser.parse_args()
    runs = [("dense FP32", 1), *((name, args.ranks) for name in EXCHANGES)]
    rows = [run_exchange(args, name, ranks) for name, ranks in runs]
    dense, dense_bytes = (rows[1][key] for key in (
        "test_accuracy", "bytes_per_step_per_rank"))
    print(f"\nHandwritten digits, {args.epochs} epochs, batch {args.batch} over "
          f"all ranks, momentum SGD,\n{args.seeds} seeds (mean +- sd); weights "
          "are the same on every rank.\n")
    lines = []
    for row in rows:
        sent = row["bytes_per_step_per_rank"]  # One rank alone sends nothing.
        lines.append({**row, "off": row["test_accuracy"] - dense,
                      "saving": dense_bytes / sent if sent else None})
    print(report.table(
        lines,
        {"configuration": "{configuration}", "ranks": "{ranks}",
         "train loss": "{train_loss:.5f}",
         "test accuracy": "{test_accuracy:.2%} +- {test_accuracy_sd:.2%}",
         "vs dense": "{off:+.2%}",
         "bytes/step/rank": "{bytes_per_step_per_rank:.0f}",
         "saving": "{saving:.1f}x", "seconds": "{seconds:.2f}"}))
    report.append_json(args.json, rows)


if __name__ == "__main__":
    main()
