"""How good choices of algorithms are: choices.py FILE...

The files have rows of `collectives.py --best`, best from several openings of each
job, since links are measured anew each time. Beside the choices stands hindsight:
the algorithm that is fastest in the median of the other openings. Where that loses,
the times differ too much from opening to opening for any rule.
"""

import collections
import fileinput
import json
import statistics


LIMIT = 1.25


def hindsight(openings: list[dict[str, float]]) -> list[float]:
    """For each opening, what the fastest algorithm of the others takes in it over
    what its own fastest takes."""
    lost = []
    for at, took in enumerate(openings):
        others = openings[:at] + openings[at + 1:]
        best = min(took, key=lambda name: statistics.median(
            other[name] for other in others))
        lost.append(took[best] / min(took.values()))
    return lost


def main() -> None:
    lost = collections.defaultdict(lambda: collections.defaultdict(list))
    openings = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in map(json.loads, fileinput.input()):
        job = (f"{row['ranks']} ranks, {row['per_host']} per host, {row['gbps']} "
               f"Gb/s, {row.get('congestion', 'unknown congestion control')}")
        point = f"{row['collective']} of {row['size']} B"
        took = {name: one["time_us"] for name, one in row["algorithms"].items()}
        openings[job][point].append(took)
        # If the choice depends on the root, only the calls' own time is known.
        lost[job][point].append(
            took.get(row["chosen"], row["time_us"]) / min(took.values()))
    spread = []
    for job, points in lost.items():
        worst = sorted(((statistics.median(of), point)
                        for point, of in points.items()), reverse=True)
        print(f"{job}: {len(worst)} points, median of openings over the fastest: "
              f"{statistics.median(of for of, _ in worst):.2f} in the middle, "
              f"{sum(of <= LIMIT for of, _ in worst)} up to {LIMIT}; worst:",
              ", ".join(f"{of:.2f} {point}" for of, point in worst[:4]))
        again = {point: of for point, of in openings[job].items() if len(of) > 1}
        if not again:
            continue
        known = {point: hindsight(of) for point, of in again.items()}
        medians = [statistics.median(of) for of in known.values()]
        print(f"  single openings above {LIMIT}: "
              f"{sum(of > LIMIT for point in known for of in points[point])} of "
              f"{sum(map(len, known.values()))}, in hindsight "
              f"{sum(of > LIMIT for point in known.values() for of in point)}; "
              f"hindsight's medians: {sum(of <= LIMIT for of in medians)} up to "
              f"{LIMIT}, worst {max(medians):.2f}")
        for of in again.values():
            for name in of[0]:
                times = [took[name] for took in of]
                spread.append(max(times) / min(times))
    if spread:
        spread.sort()
        print(f"one algorithm, slowest opening over fastest: "
              f"{statistics.median(spread):.2f} in the middle, 90 % up to "
              f"{spread[len(spread) * 9 // 10]:.2f}")


if __name__ == "__main__":
    main()
