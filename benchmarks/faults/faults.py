#!/usr/bin/env python3
"""Kills (kill -9) and stops (SIGSTOP) random ranks of a job at random moments.

Survivors must end with an error that names the culprit: within 1 s of a death,
within 1 s of the heartbeat time-out after a stop, within 1 s of the join
time-out if the fault came while the job was opening. They may succeed only if
the victim had handed in everything that the job needs of it. A stopped victim
continues when the others have ended, and must end, too. There must be no wrong
sums, no hangs, and nothing left behind.

With --fabric rdma, which tests/rdma/faults runs, ranks have cards that may also
lose their port or their address. The others then must end within 1 s of the
time for which cards send again, the victim as well some seconds later, and no
queue pair and no registered memory may be left.
"""

import collections
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterable, Iterator

import trial as trials
from lib import report

FABRICS = ("tcp", "shm", "mixed")  # What machines without cards have.


def summarise(records: list[report.Row]) -> report.Row:
    """Adds up what Trial.record() returned."""
    verdicts = collections.Counter(one["verdict"] for one in records)
    phases = collections.Counter(one["phase"] for one in records)
    row: report.Row = {
        "benchmark": "faults", "faults": len(records),
        "leftovers": sum(bool(one["leftovers"]) for one in records),
        "verdicts": {name: verdicts[name] for name in trials.VERDICTS},
        "phases": {name: phases[name] for name in trials.PHASES}}
    for kind in trials.KINDS:
        seconds = [each for one in records if one["kind"] == kind
                   for each in one["seconds"]]
        row[kind] = {"survivors": len(seconds),
                     "median_seconds": report.median(seconds or [0]),
                     "max_seconds": max(seconds, default=0)}
    return row


def run_campaign(indices: Iterable[int], ranks: int, fabrics: list[str],
                 seed: int, heartbeat_seconds: float
                 ) -> Iterator[tuple[int, trials.Trial]]:
    """Runs the faults with these numbers one after the other, since they measure
    time, and yields each. Prints those that did not go well."""
    with tempfile.TemporaryDirectory() as folder:
        for i in indices:
            trial = trials.Trial(trials.draw(
                seed, i, ranks, fabrics[i % len(fabrics)], heartbeat_seconds),
                ranks, folder)
            if not trial.good:
                tell(i, trial)
            yield i, trial


def tell(index: int, trial: trials.Trial) -> None:
    """Prints a line about a fault, and one for each thing left behind."""
    print(f"#{index} {trial.fault}: hit in {trials.PHASES[trial.phase]} of step "
          f"{trial.step}: {trial.verdict}; {trial.what}",
          *trial.leftovers, sep="\n  left behind: ", flush=True)


def show(row: report.Row) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in
                       row["verdicts"].items())
    print(f"{row['faults']} faults: {counts}, {row['leftovers']} leftovers")
    kinds = [{"kind": kind, **row[kind]} for kind in trials.KINDS
             if row[kind]["survivors"]]
    print(report.table(kinds, {
        "kind": "{kind}", "median s": "{median_seconds:.3f}",
        "most s": "{max_seconds:.3f}", "survivors": "{survivors}"}))


def _fabrics(text: str) -> list[str]:
    return ["rdma"] if text == "rdma" else report.some_of(FABRICS)(text)


def options(add: report.Add) -> None:
    add("--count", type=report.at_least(1), default=300, help="faults")
    add("--first", type=report.at_least(0), default=0,
        help="the number of the first one")
    add("--ranks", type=report.at_least(2), default=3)
    add("--fabric", type=_fabrics, default="all")
    add("--seed", type=int, default=1)
    add("--verbose", action="store_true", help="a line per fault")
    add("--records", type=pathlib.Path, metavar="FILE",
        help="append a line in JSON per fault, for --summary")
    add("--summary", type=pathlib.Path, metavar="FILE",
        help="no faults, but the sum of these records")


@report.program(options)
def main(args: report.Args) -> None:
    if args.summary:
        records = [json.loads(line) for line in
                   args.summary.read_text(encoding="utf-8").splitlines()]
    else:
        # A virtual machine is slow enough for a longer silence.
        silence = 2 if args.fabric == ["rdma"] else 1.5
        records = []
        for index, trial in run_campaign(
                range(args.first, args.first + args.count), args.ranks,
                args.fabric, args.seed, silence):
            records.append(trial.record())
            if args.verbose and trial.good:
                tell(index, trial)
            elif index % 10 == 9:
                print(f"{index + 1 - args.first} faults so far", flush=True)
            if args.records:
                with open(args.records, "a", encoding="utf-8") as file:
                    file.write(json.dumps(records[-1]) + "\n")
    row = summarise(records)
    show(row)
    report.append_json(args.json, [row])
    sys.exit(any(one["verdict"] not in trials.GOOD or one["leftovers"]
                 for one in records))
