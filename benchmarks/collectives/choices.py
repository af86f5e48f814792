"""How good choices of algorithms are: choices.py FILE...

The files have rows of `collectives.py --best`, best from several openings of each
job, since links are measured anew each time.
"""

import collections
import fileinput
import json
import statistics


def main() -> None:
    lost = collections.defaultdict(lambda: collections.defaultdict(list))
    times = collections.defaultdict(list)
    for row in map(json.loads, fileinput.input()):
        job = (f"{row['ranks']} ranks, {row['per_host']} per host, {row['gbps']} "
               f"Gb/s, {row.get('congestion', 'unknown congestion control')}")
        point = f"{row['collective']} of {row['size']} B"
        took = {name: one["time_us"] for name, one in row["algorithms"].items()}
        for name, time in took.items():
            times[job, point, name].append(time)
        # If the choice depends on the root, only the calls' own time is known.
        lost[job][point].append(
            took.get(row["chosen"], row["time_us"]) / min(took.values()))
    for job, points in lost.items():
        worst = sorted(((statistics.median(of), point)
                        for point, of in points.items()), reverse=True)
        print(f"{job}: {len(worst)} points, median of openings over the fastest: "
              f"{statistics.median(of for of, _ in worst):.2f} in the middle, "
              f"{sum(of <= 1.25 for of, _ in worst)} up to 1.25; worst:",
              ", ".join(f"{of:.2f} {point}" for of, point in worst[:4]))
    spread = sorted(max(of) / min(of) for of in times.values() if len(of) > 1)
    if spread:
        print(f"one algorithm, slowest opening over fastest: "
              f"{statistics.median(spread):.2f} in the middle, 90 % up to "
              f"{spread[len(spread) * 9 // 10]:.2f}")


if __name__ == "__main__":
    main()
