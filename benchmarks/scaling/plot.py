#!/usr/bin/env python3
"""Draws steps: those that were measured, and those that gradientflow_plan predicts.

  gradientflow_plan predict ... --ranks 1,2,4,8,16 --json > predictions.json
  plot.py predictions.json picture.svg          samples per second against ranks
  plot.py predictions.json picture.svg --of efficiency

A prediction's band holds 80 % of the cases. A hollow point depends on something that
was not measured.

Of measured steps (scaling.py --plot) it draws the speedup. There is a panel per
model, and a group of bars per link and number of ranks. The dashed line is the
speedup of a step without any communication, which no technique can exceed. If it
is far above the bars, its number is printed instead.
"""

import argparse
import json
import pathlib
import sys
from typing import Any, NamedTuple

# The column of a prediction, and what it is.
QUANTITIES = {"samples": ("samples_per_second", "samples per second"),
              "efficiency": ("efficiency_percent",
                             "own work as a part of the step (%)")}
COLOURS = ("0.65", "tab:blue", "tab:orange", "tab:green", "tab:red",
           "tab:purple", "tab:brown", "tab:olive", "tab:cyan")


def draw_model(axes: Any, rows: list[dict[str, Any]]) -> None:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        place = f"{row['link']}, {row['ranks']} ranks"
        groups.setdefault(place, []).append(row)
    top = 1.25 * max(row["speedup"] for row in rows)
    width = 0.85 / max(map(len, groups.values()))
    for at, group in enumerate(groups.values()):
        left = at - width * (len(group) - 1) / 2
        for i, (row, colour) in enumerate(zip(group, COLOURS)):
            bar = axes.bar(left + i * width, row["speedup"], 0.92 * width,
                           color=colour, label=row["label"] if at == 0 else None)
            axes.bar_label(bar, [f"{row['speedup']:.1f}x\n"
                                 f"{row['iteration_ms']:.0f} ms"],
                           fontsize="x-small", padding=2)
        limit = group[0]["iteration_ms"] / group[0]["alone_ms"]
        if limit < top:
            axes.hlines(limit, at - 0.45, at + 0.45, color="0.3",
                        linestyle="--", linewidth=1)
        # Above the numbers of the bars, wherever the line is.
        axes.text(at - 0.45, 0.99 * top, f"without communication: {limit:.1f}x",
                  fontsize="x-small", va="top")
    axes.set_title(f"{rows[0]['model']}, batch {rows[0]['batch']} per rank")
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel(f"speedup of a step against {rows[0]['label']}")
    axes.set_ylim(0, top)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


class Curve(NamedTuple):
    """What is predicted for one exchange, by ranks."""

    ranks: list[int]
    value: list[float]
    low: list[float]  # 80 % of the cases are between low
    high: list[float]  # and high.
    measured: list[bool]  # Nothing is extrapolated.


def curves(rows: list[dict[str, Any]], quantity: str) -> dict[str, Curve]:
    """Returns a curve for each exchange in the predictions. Both quantities are
    inversely proportional to the step."""
    column = QUANTITIES[quantity][0]
    if not any(row[column] for row in rows):
        raise ValueError(
            f"the predictions have no {column}: make the profile with "
            "GRADIENTFLOW_PROFILE_BATCH, or draw --of efficiency")
    found: dict[str, Curve] = {}
    for row in sorted(rows, key=lambda row: row["ranks"]):
        curve = found.setdefault(row["exchange"], Curve([], [], [], [], []))
        work = row[column] * row["step_seconds"]
        curve.ranks.append(int(row["ranks"]))
        curve.value.append(row[column])
        curve.low.append(work / row["high_seconds"])
        curve.high.append(work / row["low_seconds"])
        curve.measured.append(row["extrapolated"] == "-")
    return found


def draw_predictions(rows: list[dict[str, Any]], quantity: str,
                     path: pathlib.Path) -> None:
    all_curves = curves(rows, quantity)
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(6, 4.2))
    for (name, curve), colour in zip(all_curves.items(), COLOURS[1:]):
        axes.fill_between(curve.ranks, curve.low, curve.high, color=colour,
                          alpha=0.15, linewidth=0)
        axes.plot(curve.ranks, curve.value, color=colour, label=name)
        for known, fill in ((True, colour), (False, "white")):
            points = [(n, v) for n, v, m in zip(*curve[:2], curve.measured)
                      if m == known]
            if points:
                axes.plot(*zip(*points), "o", color=colour, markersize=5,
                          markerfacecolor=fill)
    ranks = sorted({n for curve in all_curves.values() for n in curve.ranks})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, map(str, ranks))
    axes.minorticks_off()
    if quantity == "efficiency":
        axes.set_ylim(0, 105)
    else:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("ranks")
    axes.set_ylabel(QUANTITIES[quantity][1])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    axes.set_title("predicted; the band holds 80 % of the cases",
                   fontsize="medium")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def load_pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")  # No display needed.
    from matplotlib import pyplot
    return pyplot


def draw(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    pyplot = load_pyplot()
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = pyplot.subplots(
        1, len(models), figsize=(6 * len(models), 4.8), squeeze=False)
    for model, part in zip(models, axes[0]):
        draw_model(part, [row for row in rows if row["model"] == model])
    figure.legend(*axes[0][0].get_legend_handles_labels(), fontsize="small",
                  loc="upper center", ncols=5, bbox_to_anchor=(0.5, 1))
    how = ", ".join(dict.fromkeys(row["how"] for row in rows))
    figure.supxlabel(f"links: {how}; {rows[0].get('machine', '')}".rstrip("; "),
                     fontsize="x-small")
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictions", type=pathlib.Path)
    parser.add_argument("picture", type=pathlib.Path, help=".png or .svg")
    parser.add_argument("--of", choices=QUANTITIES, default="samples")
    args = parser.parse_args()
    try:
        rows = json.loads(args.predictions.read_text())["predictions"]
        draw_predictions(rows, args.of, args.picture)
    except (KeyError, TypeError) as error:
        sys.exit(f"plot: {args.predictions}: {error} is missing: expected what "
                 "gradientflow_plan predict --json prints")
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"plot: {args.predictions}: {error}")


if __name__ == "__main__":
    main()
