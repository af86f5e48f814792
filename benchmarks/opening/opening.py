#!/usr/bin/env python3
"""How long ranks take to open a communicator, once they have started.

All ranks begin at the same moment, when their processes are up. A time is that
of the slowest rank until it could start its first call: the ranks have met, know
each other, are connected and, on links, have measured them.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lib import report  # noqa: E402
from lib.network import Network  # noqa: E402
from lib.ranks import RankError, run_programs  # noqa: E402

MEETINGS = ("tcp", "file")
START_SECONDS = 0.5  # Until all processes are up; more with more ranks.


def open_once(network: Network, meeting: str) -> float:
    """Returns the seconds of the slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"GRADIENTFLOW_BUCKET_BYTES": "0"}
        if meeting == "file":
            environment["GRADIENTFLOW_RENDEZVOUS"] = f"file://{folder}"
        begin = time.monotonic() + START_SECONDS + 0.05 * network.ranks
        return max(run_programs(network, "opening/rank", {"begin": begin},
                                environment))


def main() -> None:
    parser = report.parser(__doc__)
    add = parser.add_argument
    add("--ranks", type=report.list_of(report.at_least(1)), default=[8])
    add("--meeting", type=report.list_of(str), default=list(MEETINGS),
        help=f"a list of: {', '.join(MEETINGS)}")
    add("--gbps", type=float, help="of the hosts' links; default: one host")
    add("--per-host", type=report.at_least(1), default=1, help="with --gbps")
    add("--rounds", type=report.at_least(1), default=7)
    args = parser.parse_args()
    if set(args.meeting) - set(MEETINGS):
        parser.error(f"--meeting: expected some of {', '.join(MEETINGS)}")
    rows = []
    try:
        for ranks in args.ranks:
            with Network(ranks, args.gbps, per_host=args.per_host) as network:
                for meeting in args.meeting:
                    times = [open_once(network, meeting)
                             for _ in range(args.rounds)]
                    rows.append({"benchmark": "opening", "ranks": ranks,
                                 "meeting": meeting, "gbps": args.gbps,
                                 "per_host": args.per_host,
                                 "median_ms": 1e3 * report.median(times),
                                 "least_ms": 1e3 * min(times),
                                 "most_ms": 1e3 * max(times)})
    except (OSError, ValueError, RankError) as error:
        sys.exit(f"opening: {error}")
    print(report.table(
        ["ranks", "meeting", "median ms", "least", "most"],
        [[str(row["ranks"]), row["meeting"], *(
            f"{row[key]:.1f}" for key in ("median_ms", "least_ms", "most_ms"))]
         for row in rows]))
    report.append_json(args.json, rows)


if __name__ == "__main__":
    main()
