"""What collectives.py prints: nccl-tests' columns, and below them prices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lib import report

_WIDTHS = (12, 11, 16, 14, 16, 6, 11, 7, 7, 8, 6)


def _line(cells: Sequence[str]) -> None:
    """Prints nccl-tests' columns, then two for each program that is compared."""
    widths = itertools.chain(_WIDTHS, itertools.cycle((11, 9)))
    print(" ".join(cell.rjust(width) for cell, width in zip(cells, widths)),
          flush=True)


def header(others: list[str]) -> None:
    _line(["#size", "count", "type", "collective", "algorithm", "fabric", "time",
           "algbw", "busbw", "cpu", "#wrong",
           *(cell for name in others for cell in (name, f"{name}/"))])
    _line(["#(B)", "(elements)", "", "", "", "", "(us)", "(GB/s)", "(GB/s)",
           "(ns/B)", "", *["(us)", "ours"] * len(others)])


def row(row: report.Row, others: list[str]) -> None:
    kind = row["type"] + ("" if row["wire"] == row["type"] else
                          "/" + row["wire"])
    cells = [str(row["size"]), str(row["count"]), kind, row["collective"],
             row["algorithm"], row["fabric"], f"{row['time_us']:.2f}",
             f"{row['algbw_gbps']:.2f}", f"{row['busbw_gbps']:.2f}",
             f"{row.get('cpu_ns_per_byte', 0):.2f}", str(row["wrong"])]
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
