#!/usr/bin/env python3
"""How long ranks take to open a communicator, and what that costs.

  opening.py                            8 ranks, a process each
  opening.py --ranks 512 --processes 8 --meeting file --rounds 1
                                        ranks are threads of a few processes

Processes are told to open when all of them are up. A time is that of the slowest
rank until it could start its first call: the ranks have met, know each other, are
connected and, on links, have measured them. Afterwards they run some collectives,
whose results are checked, since these may need further links; and close. Links are
those of the rank that has most; descriptors, those of all processes per rank.

  opening.py --choosing 4096            how long it takes to choose the algorithm of
                                        a call whose size and root are new, in a
                                        job of so many ranks; no rank is started
"""

import subprocess
import tempfile

from lib import report
from lib.network import Network, congestion_option
from lib.ranks import program, start_team

PHASES = ("open", "collectives", "close")


def open_once(args: report.Args, network: Network, ranks: int,
              meeting: str) -> dict[str, float]:
    """Returns the milliseconds of each phase, and what is open after it."""
    seen = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {"GRADIENTFLOW_BUCKET_BYTES": "0",
                       "GRADIENTFLOW_CONNECT": args.connect,
                       "GRADIENTFLOW_FABRIC": args.fabric,
                       # Many ranks share the cores.
                       "GRADIENTFLOW_JOIN_TIMEOUT_SECONDS": "300",
                       "GRADIENTFLOW_HEARTBEAT_TIMEOUT_SECONDS": "120"}
        if meeting == "file":
            environment["GRADIENTFLOW_RENDEZVOUS"] = f"file://{folder}"
        team = start_team("opening", network,
                          [program("opening/rank"), str(ranks)], environment)
        for phase in PHASES:
            seen[f"{phase}_ms"] = 1e3 * max(map(float, team.ask(phase)))
            links, descriptors = zip(*(map(int, answer.split())
                                       for answer in team.ask("count")))
            seen[f"{phase}_links"] = max(links)
            seen[f"{phase}_descriptors"] = sum(descriptors) / ranks
        team.close()
    return seen


def measure(args: report.Args, ranks: int, meeting: str) -> report.Row:
    processes = min(args.processes or ranks, ranks)
    with Network(processes, args.gbps, per_host=args.per_host,
                 congestion=args.congestion) as network:
        rounds = [open_once(args, network, ranks, meeting)
                  for _ in range(args.rounds)]
    medians = {key: report.median(seen[key] for seen in rounds)
               for key in rounds[0]}
    return {"benchmark": "opening", "ranks": ranks, "processes": processes,
            "connect": args.connect, "meeting": meeting, "gbps": args.gbps,
            "congestion": network.congestion, "per_host": args.per_host,
            "median_ms": medians["open_ms"],
            "least_ms": min(seen["open_ms"] for seen in rounds),
            "most_ms": max(seen["open_ms"] for seen in rounds), **medians}


def choose(ranks: int, per_host: int) -> list[report.Row]:
    """The microseconds of each collective, on one core."""
    said = subprocess.run([program("opening/choosing"), str(ranks),
                           str(per_host)],
                          check=True, capture_output=True, text=True).stdout
    rows = []
    for line in said.splitlines():
        name, median, most = line.split()
        rows.append({"benchmark": "choosing", "ranks": ranks,
                     "per_host": per_host, "collective": name,
                     "median_us": float(median), "most_us": float(most)})
    return rows


def show_choices(args: report.Args) -> None:
    rows = [row for ranks in args.choosing for per_host in (1, 8)
            for row in choose(ranks, per_host)]
    print(report.table(rows, {
        "collective": "{collective}", "ranks": "{ranks}",
        "per host": "{per_host}", "median us": "{median_us:.1f}",
        "most": "{most_us:.1f}"}))
    report.append_json(args.json, rows)


def options(add: report.Add) -> None:
    add("--choosing", type=report.list_of(report.at_least(1)), default=[],
        metavar="RANKS", help="time choices instead")
    add("--ranks", type=report.list_of(report.at_least(1)), default=[8])
    add("--processes", type=report.at_least(1),
        help="among which the ranks are divided; default: one per rank")
    add("--connect", choices=("all", "needed", "auto"), default="auto")
    add("--fabric", choices=("auto", "shm", "tcp"), default="auto")
    add("--meeting", type=report.some_of(("tcp", "file")), default="tcp,file")
    add("--gbps", type=float, help="of the hosts' links; default: one host")
    congestion_option(add)
    add("--per-host", type=report.at_least(1), default=1, help="with --gbps")
    add("--rounds", type=report.at_least(1), default=7)


@report.program(options)
def main(args: report.Args) -> None:
    if args.choosing:
        show_choices(args)
        return
    rows = [measure(args, ranks, meeting)
            for ranks in args.ranks for meeting in args.meeting]
    print(report.table(rows, {
        "ranks": "{ranks}", "meeting": "{meeting}",
        "congestion control": "{congestion}",
        "median ms": "{median_ms:.1f}", "least": "{least_ms:.1f}",
        "most": "{most_ms:.1f}", "links": "{open_links:.0f}",
        "descriptors": "{open_descriptors:.1f}",
        "collectives ms": "{collectives_ms:.1f}",
        "links then": "{collectives_links:.0f}",
        "descriptors then": "{collectives_descriptors:.1f}",
        "close ms": "{close_ms:.1f}"}))
    report.append_json(args.json, rows)
