"""Command line options, medians, tables for people, and rows in JSON lines."""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import math
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median, stdev
from typing import Any

from lib.ranks import RankError

Row = dict[str, Any]


def median_ratio(base: Sequence[float], ours: Sequence[float]) -> float:
    """The median of base over ours, by round: above 1, ours is faster."""
    return median(b / o for b, o in zip(base, ours))


def mean_and_sd(values: Sequence[float], key: str) -> Row:
    """Returns the mean as `key`, and the standard deviation, which is NaN for a
    single value, as `key`_sd."""
    return {key: fmean(values),
            f"{key}_sd": stdev(values) if len(values) > 1 else math.nan}


def table(rows: Iterable[Row], columns: dict[str, str]) -> str:
    """Formats a table: the first column to the left, the others to the right.
    `columns` are headings and format strings of a row's fields; what a row lacks
    is shown as "-"."""
    lines = [list(columns)]
    for row in rows:
        lines.append([])
        for form in columns.values():
            try:
                lines[-1].append(form.format_map(row))
            except (KeyError, TypeError):  # Not there, or None.
                lines[-1].append("-")
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                  for i, (cell, width) in enumerate(zip(line, widths)))
        for line in lines)


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
    """Returns a parser with --json; `text` is shown as it is."""
    made = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=pathlib.Path, metavar="FILE",
                      help="append the rows there")
    return made


def program(main: Callable[[], None]) -> Callable[[], None]:
    """Wraps a driver's main(), which then ends with a line about its error."""
    @functools.wraps(main)
    def run() -> None:
        try:
            main()
        except (OSError, ValueError, RankError) as error:
            sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: {error}")
    return run


def at_least(least: int) -> Callable[[str], int]:
    """A type of command line arguments: an integer of at least `least`."""
    def integer(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(
                f"{text}: expected at least {least}")
        return value
    return integer


def list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A type of command line arguments: values separated by commas."""
    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]
    return parse


def some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """A type of command line arguments: a list of known names, or all."""
    names = list(known)

    def parse(text: str) -> list[str]:
        found = names if text == "all" else text.split(",")
        for name in found:
            if name not in names:
                raise argparse.ArgumentTypeError(
                    f"{name}: expected some of {', '.join(names)}, or all")
        return found
    return parse
