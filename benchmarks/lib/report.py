"""Command line options, medians, tables for people, and rows in JSON lines."""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import pathlib
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = dict[str, Any]


def median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def median_ratio(base: Sequence[float], ours: Sequence[float]) -> float:
    """The median of base over ours, round by round: above 1 ours takes less
    time."""
    return median(b / o for b, o in zip(base, ours))


def table(header: list[str], lines: list[list[str]]) -> str:
    """Formats a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *lines)]
    return "\n".join(
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                  for i, (cell, width) in enumerate(zip(line, widths)))
        for line in [header, *lines])


@functools.cache
def machine() -> str:
    """Returns the processor's name and the number of cores."""
    name = os.uname().machine
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {os.cpu_count()} cores"


def append_json(path: pathlib.Path | None, rows: list[Row]) -> None:
    """Appends one JSON object per row, with machine and date."""
    if path is None:
        return
    common = {"machine": machine(), "date": str(datetime.date.today())}
    with open(path, "a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({**row, **common}) + "\n")


def parser(text: str | None) -> argparse.ArgumentParser:
    """Returns a parser with --json; `text` is a module's docstring, shown as it
    is."""
    made = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=pathlib.Path, metavar="FILE",
                      help="append the rows there")
    return made


def at_least(least: int) -> Callable[[str], int]:
    """A type of command line arguments: an integer of at least `least`."""
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"{text}: expected an integer, at least {least}")
        return value
    return parse


def list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A type of command line arguments: values separated by commas."""
    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]
    return parse
