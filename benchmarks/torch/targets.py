#!/usr/bin/env python3
"""Holds the rows that the benchmarks wrote against what is asked of them.

  targets.py torch.jsonl        exits with 1 if one is missed
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import report

Row = dict[str, Any]


class Verdict(NamedTuple):
    what: str
    asked: str
    measured: str
    reached: bool


def _communication(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if (row["benchmark"] != "compare" or row["link"] != "loopback" or
                row["ranks"] != 2 or row.get("configuration") != "ours"):
            continue
        what = (f"DDP + ours against DDP + Gloo, {row['model']}, "
                f"{row['backward']}, fabric {row['fabric']}")
        gain = row["communication_gain_vs_gloo"]
        if row["fabric"] == "auto":
            yield Verdict(f"{what}: communication", ">= 2x", f"{gain:.2f}x",
                          gain >= 2)
        rate = row["step_rate_vs_gloo"]
        yield Verdict(f"{what}: step rate", ">= 1x", f"{rate:.2f}x", rate >= 1)


def _slow_link(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if (row["benchmark"] == "compare" and row["link"] == "1 Gb/s" and
                row["model"] == "alexnet" and row["ranks"] == 2 and
                row.get("configuration") in ("ours+csc", "dp+csc")):
            for base, least in (("gloo", 8), ("gloo+fp16", 4)):
                rate = row.get(f"step_rate_vs_{base}")
                if rate is not None:
                    yield Verdict(
                        f"AlexNet, 1 Gb/s, {row['backward']}, "
                        f"{row['configuration']} against {base}: step rate",
                        f">= {least}x", f"{rate:.2f}x", rate >= least)


def _latency(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if (row["benchmark"] == "latency" and row["bytes"] == 4096 and
                row["backend"] == "gradientflow" and row["ranks"] == 2):
            microseconds = 1e6 * row["seconds"]
            yield Verdict(f"allreduce of 4 KiB, fabric {row['fabric']}",
                          "<= 60 us", f"{microseconds:.1f} us",
                          microseconds <= 60)


def _overhead(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        name = row.get("configuration", "")
        if not name.startswith(("ours", "dp")):
            continue
        if row["benchmark"] == "overhead, hooks":
            each = 1e6 * row["python_seconds"] / row["parameters"]
            yield Verdict(f"Python per parameter and step, {name}",
                          "<= 2 us", f"{each:.2f} us", each <= 2)
            calls = row["python_calls_in_backward"]
            yield Verdict(f"Python calls in backward, {name}", "0",
                          str(calls), calls == 0)
        if row["benchmark"] == "overhead, start":
            # DDP's own start is the same over Gloo; ours counts in full.
            added = row["over_gloo"] if name.startswith("ours") else row["all"]
            if added is not None:
                yield Verdict(f"torch imported to first step, {name}",
                              "<= 1 s", f"{added:.2f} s", added <= 1)


def _accuracy(rows: list[Row]) -> Iterator[Verdict]:
    for row in rows:
        if (row["benchmark"] == "accuracy" and row["seeds"] >= 5 and
                row["configuration"] in ("ours+csc", "dp+csc") and
                "within_noise" in row):
            yield Verdict(
                f"test loss after equal samples, {row['network']}, "
                f"{row['ranks']} ranks, {row['configuration']} less dense",
                f"<= {row['noise']:.4f}", f"{row['off']:+.4f}",
                row["within_noise"])


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    verdicts = [verdict for part in (_communication, _slow_link, _latency,
                                     _overhead, _accuracy)
                for verdict in part(rows)]
    if not verdicts:
        raise SystemExit(f"targets: {sys.argv[1]}: no row that a target is for")
    print(report.table(
        ["target", "asked", "measured", ""],
        [[v.what, v.asked, v.measured, "reached" if v.reached else "MISSED"]
         for v in verdicts]))
    sys.exit(not all(v.reached for v in verdicts))


if __name__ == "__main__":
    main()
