#!/usr/bin/env python3
"""Compares the rows that the benchmarks wrote with their targets.

  targets.py torch.jsonl        exits with 1 if a target is missed
"""

import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import report  # noqa: E402
from lib.report import Row  # noqa: E402


class Target(NamedTuple):
    """A bound for `value` of the rows that `is_for` accepts."""

    what: str  # Row fields in braces.
    is_for: Callable[[Row], bool]
    value: Callable[[Row], float | None]
    sign: str  # ">=" or "<=".
    bound: float
    unit: str = ""


def _rows(benchmark: str, *configurations: str,
          **fields: Any) -> Callable[[Row], bool]:
    """Accepts rows of these configurations, if any are named, and fields."""
    wanted = {"benchmark": benchmark, **fields}
    return lambda row: (
        all(row.get(key) == value for key, value in wanted.items()) and
        (not configurations or row.get("configuration") in configurations))


_OURS = {"link": "loopback", "ranks": 2}
_SLOW = _rows("compare", "ours+csc", "dp+csc", link="1 Gb/s", model="alexnet",
              ranks=2)
_HOOKS = _rows("overhead, hooks", "ours", "ours+fp16", "ours+csc", "dp",
               "dp+fp16", "dp+csc")
TARGETS = (
    Target("DDP + ours against DDP + Gloo, {model}: communication",
           _rows("compare", "ours", fabric="auto", **_OURS),
           lambda row: row["communication_gain_vs_gloo"], ">=", 2, "x"),
    Target("DDP + ours against DDP + Gloo, {model}, fabric {fabric}: step rate",
           _rows("compare", "ours", **_OURS),
           lambda row: row["step_rate_vs_gloo"], ">=", 1, "x"),
    Target("AlexNet, 1 Gb/s, {configuration} against gloo: step rate", _SLOW,
           lambda row: row.get("step_rate_vs_gloo"), ">=", 8, "x"),
    Target("AlexNet, 1 Gb/s, {configuration} against gloo+fp16: step rate",
           _SLOW, lambda row: row.get("step_rate_vs_gloo+fp16"), ">=", 4, "x"),
    Target("allreduce of 4 KiB, fabric {fabric}",
           _rows("latency", bytes=4096, backend="gradientflow", ranks=2),
           lambda row: 1e6 * row["seconds"], "<=", 60, " us"),
    Target("Python per parameter and step, {configuration}", _HOOKS,
           lambda row: 1e6 * row["python_seconds"] / row["parameters"],
           "<=", 2, " us"),
    Target("Python calls in backward, {configuration}", _HOOKS,
           lambda row: row["python_calls_in_backward"], "<=", 0),
    Target("test loss after equal samples, {ranks} ranks, {configuration}: less "
           "dense's, of the noise", _rows("accuracy", "ours+csc", "dp+csc"),
           lambda row: row["off"] / row["noise"]
           if "off" in row and row["seeds"] >= 5 else None, "<=", 1),
)


def verdicts(rows: list[Row]) -> Iterator[Row]:
    """Yields a row for each target and row that it is for."""
    for target in TARGETS:
        for row in rows:
            value = target.value(row) if target.is_for(row) else None
            if value is None:
                continue
            reached = (value >= target.bound if target.sign == ">=" else
                       value <= target.bound)
            yield {**target._asdict(), "what": target.what.format(**row),
                   "value": value, "verdict": "reached" if reached else "MISSED"}


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    found = list(verdicts([json.loads(line) for line in text.splitlines()]))
    if not found:
        raise SystemExit(f"targets: {sys.argv[1]}: no row that a target is for")
    print(report.table(found, {
        "target": "{what}", "asked": "{sign} {bound}{unit}",
        "measured": "{value:.2f}{unit}", "": "{verdict}"}))
    sys.exit(any(row["verdict"] == "MISSED" for row in found))


if __name__ == "__main__":
    main()
