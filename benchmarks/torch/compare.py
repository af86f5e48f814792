#!/usr/bin/env python3
"""Ways to train with torch, compared in one run, alternating.

  compare.py                               AlexNet and ResNet-50, loopback
  compare.py --links loopback,10,1         and on shaped links (needs root)

The columns are: the time of a step and its spread over the rounds; its rate
relative to DDP over Gloo, and over Gloo with torch's FP16 hook (medians of the
ratios within a round); the time beyond that of a step under no_sync(), and the
same without DDP's own copies, which is the communication that backward does not
hide; the time of the optimiser; bytes per rank on the interface, with headers.
configurations.py lists the configurations.
"""


from configurations import CONFIGURATIONS
from lib import models, report
from lib.network import Network, congestion_option
from lib.ranks import run_functions
from lib.report import Row, median
from turns import rank_main


def link(text: str) -> float | None:
    """Parses a rate in Gb/s; None for loopback."""
    return None if text == "loopback" else float(text)


def options(add: report.Add) -> None:
    add("--models", type=report.some_of(models.NAMES), default="alexnet,resnet50",
        help=f"of {', '.join(models.NAMES)}")
    add("--links", type=report.list_of(link), default="loopback",
        help="list of loopback and Gb/s of each link")
    congestion_option(add)
    add("--configurations", type=report.some_of(CONFIGURATIONS),
        default="none,ddp+none,gloo,gloo+fp16,gloo+powersgd,ours,ours+fp16,"
        "ours+csc,dp,dp+fp16,dp+csc")
    add("--ranks", type=report.at_least(2), default=2)
    add("--rounds", type=report.at_least(1), default=5)
    add("--turn-seconds", type=float, default=2.0,
        help="timed per configuration and round, about; at least 2 steps")
    add("--fabric", choices=("auto", "shm", "tcp"), default="auto",
        help="of ours; auto: shared memory on loopback")
    add("--sparsity", type=float, default=0.85)
    add("--chunk-elements", type=report.at_least(1), default=32000)


def _ratio(base: list[Row], ours: list[Row], key: str) -> float | None:
    """The median over the rounds of base / ours, each within its round."""
    ratios = [one[key] / other[key] for one, other in zip(base, ours)
              if other[key] > 0]
    return median(ratios) if ratios else None


def _add_communication(of: dict[str, list[Row]]) -> None:
    """Subtracts DDP's own copies from the time that DDP adds to a step; a hook
    that sends nothing measured them in the same round."""
    for rows in of.values():
        copies = [row["added_seconds"] for row in of.get("ddp+none", [])]
        if not copies or not rows[0]["ddp"]:
            copies = [0] * len(rows)
        for row, own in zip(rows, copies):
            row["communication_seconds"] = row["added_seconds"] - own


def summarise(rows: list[Row]) -> list[Row]:
    """Returns one row per configuration, in the order of the first round."""
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(row["configuration"], []).append(row)
    _add_communication(of)
    summaries = []
    for name, mine in of.items():
        steps = [row["step_seconds"] for row in mine]
        summary: Row = {
            "configuration": name, "rounds": len(mine),
            "step_seconds": median(steps),
            "step_seconds_min": min(steps), "step_seconds_max": max(steps)}
        for key in ("added_seconds", "communication_seconds",
                    "optimizer_seconds", "wire_bytes"):
            summary[key] = median(row[key] for row in mine)
        for base in ("gloo", "gloo+fp16"):
            if base in of:
                summary[f"step_rate_vs_{base}"] = _ratio(of[base], mine,
                                                         "step_seconds")
        if "gloo" in of and name not in ("none", "ddp+none"):
            summary["communication_gain_vs_gloo"] = _ratio(
                of["gloo"], mine, "communication_seconds")
        summaries.append(summary)
    return summaries


def step_table(summaries: list[Row]) -> str:
    lines = [{**row, "mb": row["wire_bytes"] / 1e6,
              **{f"{key}_ms": 1e3 * row[f"{key}_seconds"] for key in (
                  "step", "added", "communication", "optimizer")},
              "least_ms": 1e3 * row["step_seconds_min"],
              "most_ms": 1e3 * row["step_seconds_max"]} for row in summaries]
    return report.table(lines, {
        "configuration": "{configuration}", "step ms": "{step_ms:.1f}",
        "min-max": "{least_ms:.1f}-{most_ms:.1f}",
        "rate/gloo": "{step_rate_vs_gloo:.2f}x",
        "rate/fp16": "{step_rate_vs_gloo+fp16:.2f}x",
        "added ms": "{added_ms:.1f}", "comm ms": "{communication_ms:.1f}",
        "gloo/comm": "{communication_gain_vs_gloo:.2f}x",
        "optim ms": "{optimizer_ms:.1f}", "wire MB": "{mb:.2f}"})


def run_case(args: report.Args, model: str, network: Network) -> None:
    # Freed memory is kept, as by a GPU's allocator: otherwise the pages of new
    # gradients would cost more than some exchanges.
    rows = summarise(run_functions(
        rank_main, network, args, model, network,
        environment={"GRADIENTFLOW_FABRIC": args.fabric,
                     "MALLOC_MMAP_MAX_": "0",
                     "MALLOC_TRIM_THRESHOLD_": str(1 << 36)})[0])
    shared = ", with others' bytes" if network.shared else ""
    print(f"\n{model}, {args.ranks} ranks, {network.name}{shared}, "
          f"{network.congestion}, fabric {args.fabric}, gradients replayed\n\n"
          f"{step_table(rows)}", flush=True)
    common = {"benchmark": "compare", "model": model, "ranks": args.ranks,
              "link": network.name, "congestion": network.congestion,
              "fabric": args.fabric,
              "backward": "replay"}
    report.append_json(args.json, [{**common, **row} for row in rows])


@report.program(options)
def main(args: report.Args) -> None:
    for gbps in args.links:
        for model in args.models:
            with Network(args.ranks, gbps,
                         congestion=args.congestion) as network:
                run_case(args, model, network)
