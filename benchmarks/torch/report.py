"""Rows of turns become a table: medians, spread, ratios within a round."""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]


def median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def append_json(path: pathlib.Path | None, rows: list[Row]) -> None:
    """One JSON object per line, after what is there."""
    if path is None:
        return
    with open(path, "a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, sort_keys=True) + "\n")


def table(header: list[str], lines: list[list[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *lines)]
    return "\n".join(
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                  for i, (cell, width) in enumerate(zip(line, widths)))
        for line in [header, *lines])


def _ratio(rows: list[Row], base: list[Row],
           value: Callable[[Row], float]) -> float | None:
    """Median over the rounds of base / this, each within its round."""
    by_round = {row["round"]: value(row) for row in base}
    pairs = [by_round[row["round"]] / value(row) for row in rows
             if row["round"] in by_round and value(row) > 0]
    return median(pairs) if pairs else None


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _add_communication(rows: list[Row]) -> None:
    """Of what a DDP adds to a step, DDP's own copies are no communication; a
    hook that sends nothing showed them, in the same round."""
    copies = {row["round"]: row["added_seconds"] for row in rows
              if row["configuration"] == "ddp+none"}
    for row in rows:
        own = copies.get(row["round"], 0) if row["ddp"] else 0
        row["communication_seconds"] = row["added_seconds"] - own


def summarise(rows: list[Row]) -> list[Row]:
    """One row per configuration, in the order of the first round."""
    rows = [row for row in rows if "configuration" in row]
    _add_communication(rows)
    names = list(dict.fromkeys(row["configuration"] for row in rows))
    of = {name: [row for row in rows if row["configuration"] == name]
          for name in names}
    summaries = []
    for name in names:
        mine = of[name]
        steps = [row["step_seconds"] for row in mine]
        summary: Row = {
            "configuration": name, "rounds": len(mine),
            "step_seconds": median(steps),
            "step_seconds_min": min(steps), "step_seconds_max": max(steps),
            "counted_bytes": mine[-1]["counted_bytes"]}
        for key in ("added_seconds", "communication_seconds",
                    "optimizer_seconds", "cpu_seconds", "wire_bytes"):
            summary[key] = median(row[key] for row in mine)
        for base in ("gloo", "gloo+fp16"):
            if base in of:
                summary[f"step_rate_vs_{base}"] = _ratio(
                    mine, of[base], lambda row: row["step_seconds"])
        if "gloo" in of and name not in ("none", "ddp+none"):
            summary["communication_gain_vs_gloo"] = _ratio(
                mine, of["gloo"], lambda row: row["communication_seconds"])
        summaries.append(summary)
    return summaries


def summarise_allreduces(rows: list[Row]) -> list[Row]:
    """The same for the bare allreduces of the gradients."""
    rows = [row for row in rows if "allreduces" in row]
    backends = list(dict.fromkeys(row["allreduces"] for row in rows))
    of = {b: [row for row in rows if row["allreduces"] == b] for b in backends}
    summaries = []
    for backend in backends:
        seconds = [row["seconds"] for row in of[backend]]
        summaries.append({
            "allreduces": backend, "rounds": len(seconds),
            "seconds": median(seconds), "seconds_min": min(seconds),
            "seconds_max": max(seconds),
            "gain_vs_gloo": _ratio(of[backend], of.get("gloo", []),
                                   lambda row: row["seconds"])})
    return summaries


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def _mb(count: float | None) -> str:
    return "-" if count is None else f"{count / 1e6:.2f}"


def step_table(summaries: list[Row]) -> str:
    lines = []
    for s in summaries:
        lines.append([
            s["configuration"], _ms(s["step_seconds"]),
            f"{_ms(s['step_seconds_min'])}-{_ms(s['step_seconds_max'])}",
            _times(s.get("step_rate_vs_gloo")),
            _times(s.get("step_rate_vs_gloo+fp16")),
            _ms(s["added_seconds"]), _ms(s["communication_seconds"]),
            _times(s.get("communication_gain_vs_gloo")),
            _ms(s["optimizer_seconds"]), _ms(s["cpu_seconds"]),
            _mb(s["wire_bytes"]), _mb(s["counted_bytes"])])
    return table(["configuration", "step ms", "min-max", "rate/gloo",
                  "rate/fp16", "added ms", "comm ms", "gloo/comm", "optim ms", "CPU ms",
                  "wire MB", "counted MB"], lines)


def allreduce_table(summaries: list[Row]) -> str:
    return table(
        ["allreduces of the gradients", "ms", "min-max", "gloo/this"],
        [[s["allreduces"], _ms(s["seconds"]),
          f"{_ms(s['seconds_min'])}-{_ms(s['seconds_max'])}",
          _times(s["gain_vs_gloo"])] for s in summaries])
