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
"""

import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from lib import models, report
from lib.network import Network
from lib.ranks import RankError, program, run_commands, run_programs

PLAN = "../gradientflow/gradientflow_plan"
PROBE = "../gradientflow/probe/gradientflow_probe"
_HALF = {"pool_dtype": "float16", "wire_dtype": "float16"}
# The settings of a session, and the arguments of gradientflow_plan.
WIRES = {"dense": ({}, {"wire": "float32"}),
         "fp16": (_HALF, {"wire": "float16"}),
         "csc": ({**_HALF, "sparsity": "0.85"},
                 {"wire": "float16", "mode": "csc", "sparsity": "0.85"})}
BUCKETS = {"per tensor": "0", "lazy": "auto", "one bucket": "inf"}
SWEEP = ("0", *(str(kib << 10) for kib in (256, 1024, 4096, 16384, 65536)), "inf")


def modes_of(wire: str, sizes: dict[str, str]) -> list[dict[str, Any]]:
    """Each mode, with the arguments of gradientflow_plan that describe it."""
    settings, plan = WIRES[wire]
    return [{"name": f"{wire}, {label}",
             "settings": {**settings, "bucket_bytes": size},
             "plan": {**plan, "bucket-bytes": size}}
            for label, size in sizes.items()]


def probe(network: Network, file: pathlib.Path, seconds: float) -> None:
    """Writes what the links give. Replayed backward computes nothing, so neither
    do the hosts meanwhile."""
    command = [program(PROBE), "--no-load", "--seconds", str(seconds), "--out",
               str(file)]
    run_commands(network, "gradientflow_probe", [command] * network.ranks,
                 {"GRADIENTFLOW_FABRIC": "tcp"})


def predict(model: str, file: pathlib.Path, ranks: int,
            plan: dict[str, str]) -> dict[str, Any]:
    """Returns what gradientflow_plan says of one configuration."""
    profile = models.DATA / "profiles" / f"{model}.json"
    words = [program(PLAN), "predict", "--profile", str(profile), "--probe",
             str(file), "--ranks", str(ranks), "--ranks-per-host", "1", "--json"]
    for name, value in plan.items():
        words += [f"--{name}", value]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RankError(f"{' '.join(words)}: {done.stderr.strip()}")
    try:
        row, = json.loads(done.stdout)["predictions"]
    except KeyError as error:
        raise RankError(f"gradientflow_plan did not say {error}") from error
    return row


def run_modes(args: report.Args, network: Network, model: str,
              file: pathlib.Path, modes: list[dict[str, Any]]
              ) -> list[report.Row]:
    """The modes in turn, which are open at the same time."""
    predictions = [predict(model, file, network.ranks, mode["plan"])
                   for mode in modes]
    if args.sweep:  # "auto" stands for the size that the plan names.
        modes = [mode if mode["plan"]["bucket-bytes"] != "auto" else {
            **mode, "settings": {**mode["settings"],
                                 "bucket_bytes": str(said["bucket_bytes"])}}
            for mode, said in zip(modes, predictions)]
    job = {"model": models.load(model), "modes": modes, "warmup": args.warmup,
           "rounds": args.rounds, "steps": 1}
    samples = run_programs(network, "scaling/rank", job,
                           {"GRADIENTFLOW_FABRIC": "tcp"})
    rows = []
    for i, (mode, said) in enumerate(zip(modes, predictions)):
        steps = zip(*([step["iteration_seconds"] for step in rank[i]]
                      for rank in samples))
        measured = report.median(max(step) for step in steps)
        rows.append({
            "benchmark": "planner", "model": model, "link_gbps": network.gbps,
            "ranks": network.ranks, "mode": mode["name"],
            "measured_ms": 1e3 * measured,
            "predicted_ms": 1e3 * said["step_seconds"],
            "error": said["step_seconds"] / measured - 1,
            "named_bytes": said["bucket_bytes"],
            "theta_bytes": samples[0][i][-1]["bucket_bytes"]})
    return rows


def run_cell(args: report.Args, model: str, link: float, ranks: int,
             sizes: dict[str, str]) -> list[report.Row]:
    with (Network(ranks, link) as network,
          tempfile.TemporaryDirectory() as folder):
        file = pathlib.Path(folder) / "probe.json"
        probe(network, file, args.seconds)
        rows = []
        for wire in args.wires:  # One at a time, for the sake of memory.
            cell = run_modes(args, network, model, file, modes_of(wire, sizes))
            if args.sweep:
                best = min(cell[1:], key=lambda row: row["measured_ms"])
                cell[0]["of_best"] = cell[0]["measured_ms"] / best["measured_ms"]
            rows += cell
    report.append_json(args.json, rows)
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
    print(f"\n{first['model']}, {first['ranks']} ranks, {first['link_gbps']:g} "
          "Gb/s")
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


def options(add: report.Add) -> None:
    add("--models", type=report.some_of(models.NAMES), default="resnet50_gf",
        help=f"of {', '.join(models.NAMES)}")
    add("--links", type=report.list_of(float), default=[1.0], help="Gb/s")
    add("--ranks", type=report.list_of(report.at_least(2)), default=[2])
    add("--wires", type=report.some_of(WIRES), default="all",
        help=f"of {', '.join(WIRES)}")
    add("--sweep", action="store_true",
        help="the bucket size that the plan names, among fixed ones")
    add("--warmup", type=report.at_least(1), default=4, help="untimed steps")
    add("--rounds", type=report.at_least(1), default=5,
        help="of all modes in turn")
    add("--seconds", type=float, default=0.4, help="of a measurement of the probe")


@report.program(options)
def main(args: report.Args) -> None:
    sizes = ({"named": "auto", **{size: size for size in SWEEP}} if args.sweep
             else BUCKETS)
    cells = []
    for model, link, ranks in itertools.product(args.models, args.links,
                                                args.ranks):
        if sys.stderr.isatty():  # The table overwrites this.
            print(model, link, ranks, "...", end="\r", file=sys.stderr, flush=True)
        cells.append(run_cell(args, model, link, ranks, sizes))
        print_cell(cells[-1])
    print_sum(cells)
