"""What collectives.py prints: nccl-tests' columns, and below them prices."""

from __future__ import annotations

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


def header(others: list[str]) -> None:
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


def prices(row: report.Row) -> None:
    """Prints what each algorithm was predicted to take, and what it took."""
    for name, found in row["algorithms"].items():
        price = found["price_us"]
        print(f"#   {name:>18}: {found['time_us']:12.2f} us, price "
              + ("none" if price is None else
                 f"{price:.2f} us, {price / found['time_us']:.2f}"), flush=True)


def links(row: report.Row) -> None:
    """Prints of what the prices are made."""
    for place, load in itertools.product(("across", "inside"),
                                         ("together", "alone")):
        latency, message, byte, more = row["links"][place][load]
        print(f"# {place:>6}, {load:>8}: {1e6 * latency:.1f} us a round, "
              f"{1e6 * message:.1f} us a message, {1e-9 / byte:.3g} GB/s, "
              f"{1e-9 / (byte + more):.3g} in long messages")
