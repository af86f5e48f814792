#!/usr/bin/env python3
"""What gradientflow_plan says of a step, next to the step.

Backward is replayed on a timer, from the profiles of benchmarks/data; the
communication between the rank processes is real, on links of known speed, each rank
on a host of its own. gradientflow_probe measures these links first. A prediction is
made from the profile and the probe alone: nothing is fitted. Modes take turns; a
measured time is the median over all rounds, of the slowest rank.

  planner.py                            2 ranks, links of 1 Gb/s
  planner.py --links 0.2,1,5 --ranks 2,4,8 --models resnet50_gf
  planner.py --sweep                    the bucket size that is named, among others
  planner.py --links 0.2 --models alexnet_bn --wires dense --buckets lazy \\
    --warmup 2 --rounds 1 --json FILE   a slice, which takes less time
  planner.py --ranks 4 --slow-host 0.5  the last host has such a line, in Gb/s, of
                                        which the probe knows nothing
  planner.py --sum FILE                 what all slices in the file say together

A file may have a mode several times, each measured with a probe of its own: --sum
then takes the median error, and says how far apart the times of the same steps are,
which no prediction can foresee.

Slices of a cell share a probe if --probes names a folder; repeated runs should not. With --sum as well, steps
that were measured earlier are predicted again from the probes there, by the model
as it is now.
"""

import contextlib
import datetime
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import plans
from lib import models, report
from lib.network import Network, congestion_option

BUCKETS = {"tensor": ("per tensor", "0"), "lazy": ("lazy", "auto"),
           "one": ("one bucket", "inf")}
PLACE = {"model": "{model}", "Gb/s": "{link_gbps:g}",
         "slow host": "{slow_gbps:g}", "congestion control": "{congestion}",
         "ranks": "{ranks}"}
SWEEP = ("0", *(str(kib << 10) for kib in (256, 1024, 4096, 16384, 65536)), "inf")


def run_modes(args: report.Args, network: Network, model: str,
              file: pathlib.Path, modes: list[plans.Mode]) -> list[report.Row]:
    predictions = [plans.predict(model, file, mode["plan"], network.ranks,
                                 args.slow_host) for mode in modes]
    if args.sweep:  # "auto" stands for the size that the plan names.
        modes = [mode if mode["plan"]["bucket-bytes"] != "auto" else {
            **mode, "settings": {**mode["settings"],
                                 "bucket_bytes": str(said["bucket_bytes"])}}
            for mode, said in zip(modes, predictions)]
    measured = plans.measure(network, model, modes, args.warmup, args.rounds)
    rows = []
    for mode, said, took in zip(modes, predictions, measured):
        rows.append({
            "benchmark": "planner", "model": model, "link_gbps": network.gbps,
            "slow_gbps": args.slow_host, "congestion": network.congestion,
            "ranks": network.ranks, "wire": mode["wire"], "mode": mode["name"],
            "sweep": args.sweep, "measured_ms": 1e3 * took["step_seconds"],
            "predicted_ms": 1e3 * said["step_seconds"],
            "error": said["step_seconds"] / took["step_seconds"] - 1,
            "plan": mode["plan"], "named_bytes": said["bucket_bytes"],
            "theta_bytes": took["theta_bytes"]})
    return rows


def probe_file(folder: pathlib.Path, place: report.Row) -> pathlib.Path:
    return folder / (f"probe_{place['link_gbps']:g}gbps_{place['ranks']}ranks_"
                     f"{place['congestion']}.json")


def probe(args: report.Args, network: Network, folder: pathlib.Path
          ) -> pathlib.Path:
    file = probe_file(folder, {"link_gbps": network.gbps, "ranks": network.ranks,
                               "congestion": network.congestion})
    if file.exists():
        made = datetime.datetime.fromtimestamp(file.stat().st_mtime)
        print(f"uses {file}, of {made:%Y-%m-%d %H:%M}", flush=True)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        plans.probe(network, file, args.seconds)
    return file


def run_cell(args: report.Args, model: str, link: float, ranks: int,
             sizes: dict[str, str]) -> list[report.Row]:
    with (contextlib.ExitStack() as stack,
          tempfile.TemporaryDirectory() as folder):
        network = stack.enter_context(
            Network(ranks, link, congestion=args.congestion))
        file = probe(args, network, args.probes or pathlib.Path(folder))
        if args.slow_host is not None:  # Which the probe has not seen.
            network = stack.enter_context(
                Network(ranks, link, congestion=args.congestion,
                        hosts_gbps=[link] * (ranks - 1) + [args.slow_host]))
        rows = []
        for wire in args.wires:  # One at a time, for the sake of memory.
            modes = [plans.mode_of(wire, *size) for size in sizes.items()]
            cell = run_modes(args, network, model, file, modes)
            if args.sweep:
                best = min(cell[1:], key=lambda row: row["measured_ms"])
                cell[0]["of_best"] = cell[0]["measured_ms"] / best["measured_ms"]
            report.append_json(args.json, cell)
            rows += cell
    return rows


def pairs_in_order(rows: list[report.Row]) -> tuple[int, int]:
    """Of pairs of one cell whose measured times differ by more than 10 %: how many
    are predicted in their order, and how many there are."""
    right = count = 0
    for a, b in itertools.combinations(rows, 2):
        slow, fast = sorted((a, b), key=lambda row: -row["measured_ms"])
        if slow["measured_ms"] > 1.1 * fast["measured_ms"]:
            count += 1
            right += slow["predicted_ms"] > fast["predicted_ms"]
    return right, count


def print_cell(rows: list[report.Row]) -> None:
    first = rows[0]
    slow = ("" if first["slow_gbps"] is None
            else f", the last {first['slow_gbps']:g} Gb/s")
    print(f"\n{first['model']}, {first['ranks']} ranks, {first['link_gbps']:g} "
          f"Gb/s{slow}, {first['congestion']}")
    print(report.table(rows, {
        "mode": "{mode}", "measured ms": "{measured_ms:.1f}",
        "predicted ms": "{predicted_ms:.1f}", "error": "{error:+.1%}",
        "bucket bytes": "{theta_bytes}",
        "of the best": "{of_best:.3f}"}), flush=True)


def print_sum(cells: list[list[report.Row]]) -> None:
    rows = list(itertools.chain(*cells))
    errors = [abs(row["error"]) for row in rows]
    right, count = map(sum, zip(*map(pairs_in_order, cells)))
    print(f"\n{len(rows)} predictions: median error "
          f"{report.median(errors):.1%}, worst {max(errors):.1%}; {right} of "
          f"{count} pairs that differ by more than 10 % are in the right order")
    spreads = [row["spread"] for row in rows if "spread" in row]
    if spreads:
        print(f"{len(spreads)} were measured several times; the slowest time over the "
              f"fastest: median {report.median(spreads):.2f}, most "
              f"{max(spreads):.2f}")


def cells_of(rows: Iterable[report.Row]) -> list[list[report.Row]]:
    """The rows of each model, link, congestion control, number of ranks and sweep.
    If a mode was measured several times, the one with the median error counts;
    "spread" is then its slowest measurement over its fastest."""
    cells: dict[tuple[Any, ...], dict[str, list[report.Row]]] = {}
    for row in rows:
        place = (row["sweep"], row["model"], row["link_gbps"],
                 row["slow_gbps"] or 0, row["congestion"], row["ranks"])
        cells.setdefault(place, {}).setdefault(row["mode"], []).append(row)
    return [list(map(median_row, cells[place].values())) for place in sorted(cells)]


def median_row(again: list[report.Row]) -> report.Row:
    if len(again) == 1:
        return again[0]
    steps = [row["measured_ms"] for row in again]
    ordered = sorted(again, key=lambda row: row["error"])
    # Of two in the middle the worse counts.
    middle = max(ordered[(len(again) - 1) // 2], ordered[len(again) // 2],
                 key=lambda row: abs(row["error"]))
    return {**middle, "spread": max(steps) / min(steps)}


def cell_row(cell: list[report.Row]) -> report.Row:
    """A line about a cell: of each wire, the error that is furthest off."""
    right, count = pairs_in_order(cell)
    row = {**cell[0], "pairs": f"{right}/{count}",
           "median": report.median(abs(row["error"]) for row in cell)}
    for wire in plans.WIRES:
        errors = [one["error"] for one in cell if one["wire"] == wire]
        if errors:
            row[wire] = max(errors, key=abs)
    return row


def predicted_again(row: report.Row, folder: pathlib.Path) -> report.Row:
    file = probe_file(folder, row)
    said = plans.predict(row["model"], file, row["plan"], row["ranks"],
                         row["slow_gbps"])
    return {**row, "predicted_ms": 1e3 * said["step_seconds"],
            "error": 1e3 * said["step_seconds"] / row["measured_ms"] - 1}


def summarize(path: pathlib.Path, probes: pathlib.Path | None) -> None:
    """Prints what all rows of a file say together."""
    with open(path, encoding="utf-8") as file:
        rows = list(map(json.loads, file))
    for number, row in enumerate(rows, 1):
        row.setdefault("congestion", "?")  # Not all files say these.
        row.setdefault("slow_gbps", None)
        missing = {"sweep", "wire", "plan"} - row.keys()
        if missing:
            sys.exit(f"{path}: row {number} has no {', '.join(sorted(missing))}; it "
                     "was measured before slices could be summed up")
    if probes is not None:
        rows = [predicted_again(row, probes) for row in rows]
    cells = cells_of(rows)
    for sweep, title in ((False, "the error furthest from 0 of each wire"),
                         (True, "steps with the bucket size that is named")):
        part = [cell for cell in cells if cell[0]["sweep"] == sweep]
        if not part:
            continue
        print(f"\n{title}:")
        if sweep:
            named = [row for row in itertools.chain(*part) if "of_best" in row]
            print(report.table(named, {**PLACE, "mode": "{mode}",
                                      "of the best": "{of_best:.3f}"}))
            continue
        print(report.table(map(cell_row, part), {
            **PLACE, **{wire: f"{{{wire}:+.1%}}" for wire in plans.WIRES},
            "median": "{median:.1%}", "in order": "{pairs}"}))
        print_sum(part)


def options(add: report.Add) -> None:
    add("--models", type=report.some_of(models.NAMES), default="resnet50_gf",
        help=f"of {', '.join(models.NAMES)}")
    add("--links", type=report.list_of(float), default=[1.0], help="Gb/s")
    congestion_option(add)
    add("--ranks", type=report.list_of(report.at_least(2)), default=[2])
    add("--slow-host", type=float, metavar="GBPS",
        help="the line of the last host; the probe has all of --links")
    add("--wires", type=report.some_of(plans.WIRES), default="all",
        help=f"of {', '.join(plans.WIRES)}")
    add("--buckets", type=report.some_of(BUCKETS), default="all",
        help=f"of {', '.join(BUCKETS)}")
    add("--sum", type=pathlib.Path, metavar="FILE",
        help="measure nothing: sum up the rows that --json wrote there")
    add("--probes", type=pathlib.Path, metavar="FOLDER",
        help="keep what gradientflow_probe wrote there, and use what is there")
    add("--sweep", action="store_true",
        help="the bucket size that the plan names, among fixed ones")
    add("--warmup", type=report.at_least(1), default=4, help="untimed steps")
    add("--rounds", type=report.at_least(1), default=5,
        help="of all modes in turn")
    add("--seconds", type=float, default=0.4, help="of a measurement of the probe")


@report.program(options)
def main(args: report.Args) -> None:
    if args.sum is not None:
        summarize(args.sum, args.probes)
        return
    sizes = ({"named": "auto", **{size: size for size in SWEEP}} if args.sweep
             else dict(BUCKETS[name] for name in args.buckets))
    cells = []
    for model, link, ranks in itertools.product(args.models, args.links,
                                                args.ranks):
        if sys.stderr.isatty():  # The table overwrites this.
            print(model, link, ranks, "...", end="\r", file=sys.stderr, flush=True)
        cells.append(run_cell(args, model, link, ranks, sizes))
        print_cell(cells[-1])
    print_sum(cells)
