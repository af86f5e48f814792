#!/usr/bin/python3
"""Draws speed-ups over ranks from the scaling benchmark's JSON lines.

    plot.py scaling.jsonl speedup.png     (or .svg, .pdf)
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")  # No display needed.
from matplotlib import pyplot  # noqa: E402


def read_rows(path):
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    if not rows:
        raise SystemExit(f"plot: {path}: expected rows, got none")
    return rows


def draw(axes, rows):
    ranks = sorted({row["ranks"] for row in rows})
    axes.plot(ranks, ranks, color="0.7", linestyle="--", label="ideal")
    labels = dict.fromkeys(row["label"] for row in rows)  # Keeps the order.
    # Hollow and different, since curves may lie on top of each other.
    for label, marker in zip(labels, "os^Dvp*"):
        points = sorted((row["ranks"], row["speedup"])
                        for row in rows if row["label"] == label)
        axes.plot(*zip(*points), marker=marker, markersize=8,
                  markerfacecolor="none", label=label)
    axes.set_title(f"{rows[0]['model']}, batch {rows[0]['batch']} per rank")
    axes.set_xlabel(f"ranks ({rows[0]['fabric']})")
    axes.set_xticks(ranks)
    axes.set_ylabel("speed-up against one GPU")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    rows = read_rows(sys.argv[1])
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = pyplot.subplots(
        1, len(models), figsize=(5.5 * len(models), 4.5), squeeze=False)
    for model, part in zip(models, axes[0]):
        draw(part, [row for row in rows if row["model"] == model])
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=120)


if __name__ == "__main__":
    main()
