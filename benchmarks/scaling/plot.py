"""Draws the speedup of a training step, per technique and link.

There is a panel per model, and a group of bars per link and number of ranks.
The dashed line is the speedup of a step without any communication, which no
technique can exceed. If it is far above the bars, its number is printed
instead.
"""

import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")  # No display needed.
from matplotlib import pyplot  # noqa: E402

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


def draw(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
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
