#!/usr/bin/env python3
"""How many hosts gradientflow_plan says to rent, next to steps of all of them.

As in gradientflow/docs/rent.md: two hosts are probed, and the plan is for up to
--hosts of them. Steps of 1, 2, 3, ... hosts are measured as well, on links of known
speed with a backward that is replayed on a timer, and the same questions are
answered from these: which is the cheapest number of hosts that keeps a deadline,
and which the fastest that keeps a budget. There are as many samples as one host
trains on in a day. What the plan names is judged by the measured steps.

These hosts share the cores of one machine. Where that is what limits them, two hosts
cannot show it; --probed tells how many to probe.

  renting.py                            ResNet-50 in 16 bits, links of 2 Gb/s
  renting.py --link 5 --wire dense --probed 8
"""

import json
import pathlib
import tempfile
from typing import Any

import plans
from lib import models, report
from lib.network import Network, congestion_option

HOURS_OF_ONE = 24.0  # That one host takes: so many samples are asked for.
# How many times as fast as one host the job has to be, at least; and how many
# times what that one costs may be spent. A host costs 1 an hour.
SPEEDUPS = (1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4.5, 5.5, 6.5)
BUDGETS = (1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0)
PRICE = {"kind": "price", "version": 1, "measured_by": "renting.py",
         "measured_at": "2026-11-28T00:00:00Z", "currency": "EUR",
         "price_per_node_hour": 1, "price_per_gb_out": 0, "spot": False}

# By the number of hosts.
Hours = dict[int, float]


def best_for(hours: Hours, limit: str, value: float) -> int | None:
    """The number of hosts that keeps the limit at the least cost, or in the least
    time if the limit is the cost; None if none does."""
    cost = {hosts: hosts * each for hosts, each in hours.items()}
    limited, least = (hours, cost) if limit == "deadline" else (cost, hours)
    return min((hosts for hosts in hours if limited[hosts] <= value),
               key=lambda hosts: least[hosts], default=None)


def judged(hours: Hours, limit: str, value: float, named: int | None
           ) -> report.Row:
    """How good what the plan names is by the measured hours: by how much it
    misses the limit, and is more than the best in what was to be little."""
    best = best_for(hours, limit, value)
    row = {"limit": limit, "value": value, "named": named, "best": best}
    if named is None:
        return row
    of_limit = hours[named] * (1 if limit == "deadline" else named)
    row["missed"] = max(0.0, of_limit / value - 1)
    if best is not None:
        of_least = hours[named] / hours[best]
        of_least *= named / best if limit == "deadline" else 1
        row["worse"] = max(0.0, of_least - 1)
    return row


def chosen(said: dict[str, list[dict[str, Any]]]) -> int | None:
    """The number of hosts that an answer names; None if no plan keeps the limit."""
    for plan in plans.table_of(said, "plans"):
        if plan["plan"] == "chosen":
            return round(plan["hosts"])
    return None


def steps_of(args: report.Args, mode: plans.Mode, file: pathlib.Path
             ) -> list[report.Row]:
    rows = []
    for hosts in range(1, args.hosts + 1):
        with Network(hosts, args.link, congestion=args.congestion) as network:
            took, = plans.measure(network, args.model, [mode], args.warmup,
                                  args.rounds)
        said = plans.predict(args.model, file, mode["plan"], hosts)
        rows.append({
            "benchmark": "renting", "model": args.model, "link_gbps": args.link,
            "wire": args.wire, "probed": args.probed, "hosts": hosts,
            "measured_ms": 1e3 * took["step_seconds"],
            "predicted_ms": 1e3 * said["step_seconds"],
            "error": said["step_seconds"] / took["step_seconds"] - 1})
    return rows


def questions(args: report.Args, mode: plans.Mode, folder: pathlib.Path,
              file: pathlib.Path, hours: Hours, samples: float
              ) -> list[report.Row]:
    price = folder / "price.json"
    price.write_text(json.dumps(PRICE))
    limits = [("deadline", HOURS_OF_ONE / by) for by in SPEEDUPS]
    limits += [("budget", HOURS_OF_ONE * by) for by in BUDGETS]
    rows = []
    for limit, value in limits:
        said = plans.ask("advise", args.model, file, {
            **mode["plan"], "price": price, "samples": samples,
            "max-hosts": args.hosts,
            limit: f"{value}h" if limit == "deadline" else value})
        rows.append({"benchmark": "renting", "model": args.model,
                     "link_gbps": args.link, "wire": args.wire,
                     "probed": args.probed,
                     **judged(hours, limit, value, chosen(said))})
    return rows


def print_sum(rows: list[report.Row]) -> None:
    print(report.table(
        [{**row, "limit": f"{row['limit']} {row['value']:.2f}"} for row in rows],
        {"limit": "{limit}", "named": "{named}", "best": "{best}",
         "misses the limit by": "{missed:.1%}",
         "worse than the best by": "{worse:.1%}"}))
    most = {key: max((row[key] for row in rows if key in row), default=0)
            for key in ("missed", "worse")}
    same = sum(row["named"] == row["best"] for row in rows)
    print(f"\n{len(rows)} questions: {same} named as the steps have it; the limit "
          f"missed by at most {most['missed']:.1%}, worse than the best by at most "
          f"{most['worse']:.1%}")


def options(add: report.Add) -> None:
    add("--model", choices=models.NAMES, default="resnet50_gf")
    add("--link", type=float, default=2.0, metavar="GBPS")
    congestion_option(add)
    add("--wire", choices=plans.WIRES, default="fp16")
    add("--hosts", type=report.at_least(2), default=8, help="at most")
    add("--probed", type=report.at_least(2), default=2, help="hosts of the probe")
    add("--warmup", type=report.at_least(1), default=4, help="untimed steps")
    add("--rounds", type=report.at_least(1), default=9, help="timed steps")
    add("--seconds", type=float, default=0.4, help="of a measurement of the probe")


@report.program(options)
def main(args: report.Args) -> None:
    mode = plans.mode_of(args.wire, "lazy", "auto")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        file = folder / "probe.json"
        with Network(args.probed, args.link,
                     congestion=args.congestion) as network:
            plans.probe(network, file, args.seconds)
        steps = steps_of(args, mode, file)
        print(report.table(steps, {
            "hosts": "{hosts}", "measured ms": "{measured_ms:.1f}",
            "predicted ms": "{predicted_ms:.1f}", "error": "{error:+.1%}"}))
        print(flush=True)
        one = steps[0]["measured_ms"]
        hours = {row["hosts"]: HOURS_OF_ONE * row["measured_ms"] / one / row["hosts"]
                 for row in steps}
        batch = models.load(args.model)["batch"]
        samples = 3.6e6 * HOURS_OF_ONE / one * batch
        asked = questions(args, mode, folder, file, hours, samples)
    report.append_json(args.json, steps + asked)
    print_sum(asked)
