"""Command line options, medians, tables for people, and rows in JSON lines."""

import argparse
import datetime
import functools
import json
import math
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median, stdev
from typing import Any

from lib.ranks import RankError

Row = dict[str, Any]
Args = argparse.Namespace
Add = Callable[..., Any]  # ArgumentParser.add_argument().


def quantile(values: Iterable[float], share: float) -> float:
    """Returns the value that a share of the values is at most, as Quantile() of
    gradientflow/base does; median() is that of one half."""
    ordered = sorted(values)
    below, part = divmod(share * (len(ordered) - 1), 1)
    low, high = ordered[int(below)], ordered[math.ceil(below + part)]
    return low if low == high else low + part * (high - low)


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
    name = re.search(r"^model name\s*: (.*)",
                     pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return (f"{name[1].strip() if name else os.uname().machine}, "
            f"{os.cpu_count()} cores")


def append_json(path: pathlib.Path | None, rows: list[Row]) -> None:
    """Appends one JSON object per row, with machine and date."""
    if path is None:
        return
    common = {"machine": machine(), "date": str(datetime.date.today())}
    with open(path, "a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps({**row, **common}) + "\n")


def program(options: Callable[[Add], None]
            ) -> Callable[[Callable[[Args], None]], Callable[[], None]]:
    """Makes a command of a driver's main(args), the last function of its module;
    it runs at once if that module is the command, and ends with a line about its
    error. options(add) adds its options; --json is always there."""
    def wrap(main: Callable[[Args], None]) -> Callable[[], None]:
        @functools.wraps(main)
        def run() -> None:
            parser = argparse.ArgumentParser(
                description=sys.modules[main.__module__].__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter)
            parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                                help="append the rows there")
            options(parser.add_argument)
            try:
                main(parser.parse_args())
            except (OSError, ValueError, RankError) as error:
                sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: {error}")
        if main.__module__ == "__main__":
            run()
        return run
    return wrap


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
