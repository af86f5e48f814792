"""What collectives.py prints: nccl-tests' columns, and below them prices."""

import itertools
from collections.abc import Iterable

from lib import report

# Heading, unit, width, and format of a row's fields.
_COLUMNS = (
    ("#size", "#(B)", 12, "{size}"), ("count", "(elements)", 11, "{count}"),
    ("type", "", 9, "{type}"), ("wire", "", 9, "{wire}"),
    ("collective", "", 14, "{collective}"),
    ("algorithm", "", 16, "{algorithm}"), ("fabric", "", 6, "{fabric}"),
    ("time", "(us)", 11, "{time_us:.2f}"),
    ("algbw", "(GB/s)", 7, "{algbw_gbps:.2f}"),
    ("busbw", "(GB/s)", 7, "{busbw_gbps:.2f}"),
    ("cpu", "(ns/B)", 8, "{cpu_ns_per_byte:.2f}"),
    ("#wrong", "", 6, "{wrong}"))


def _line(cells: Iterable[str]) -> None:
    """Prints nccl-tests' columns, then two for each program that is compared."""
    widths = itertools.chain((column[2] for column in _COLUMNS),
                             itertools.cycle((11, 9)))
    print(" ".join(cell.rjust(width) for cell, width in zip(cells, widths)),
          flush=True)


def header(congestion: str | None, others: list[str]) -> None:
    """`congestion` is TCP's congestion control, None if it carries nothing."""
    if congestion is not None:
        print(f"# TCP's congestion control: {congestion}")
    headings, units, _, _ = zip(*_COLUMNS)
    _line([*headings, *(cell for name in others for cell in (name, f"{name}/"))])
    _line([*units, *["(us)", "ours"] * len(others)])


def row(row: report.Row, others: list[str]) -> None:
    cells = [form.format_map({"cpu_ns_per_byte": 0, **row})
             for *_, form in _COLUMNS]
    for other in (row[name] for name in others):
        cells += [f"{other['time_us']:.2f}", f"{other['ratio']:.2f}"]
        cells[-1] += f" ({other['note']})" if "note" in other else ""
    _line(cells)
    # What each algorithm took, and what it was predicted to take.
    for name, found in row.get("algorithms", {}).items():
        time, price = found["time_us"], found["price_us"]
        print(f"#   {name:>18}: {time:12.2f} us, price {price:.2f} us, "
              f"{price / time:.2f}", flush=True)
