"""The networks whose gradients are exchanged: tensors, and when each is ready.

  models.py NAME [BATCH]     the plan that rank programs read, in JSON
  models.py --profiles       writes data/profiles/NAME.json, for gradientflow_plan

Times are those of one V100 in mixed precision. Those of alexnet_bn and
resnet50_gf were measured at batch 128; those of the others are derived: a
backward pass costs twice the forward operations, at the rate that the measured
profile of the same family implies, and the rest of an iteration (forward and
update) keeps its proportion to backward.
"""

import csv
import itertools
import json
import pathlib
import sys
from typing import Any

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
MEASURED_BATCH = 128
# Seconds of a whole iteration.
MEASURED = {"alexnet_bn": 34.7e-3, "resnet50_gf": 206e-3}
NAMES = (*MEASURED, "alexnet", "resnet50", "resnet101", "vgg16")


def rows(path: pathlib.Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def load(name: str, batch: int = MEASURED_BATCH) -> dict[str, Any]:
    """Returns the plan of one iteration of `batch` images, with the tensors in
    forward order; raises ValueError for unknown names."""
    if name not in NAMES or batch < 1:
        raise ValueError(f"model {name}, batch {batch}: expected one of "
                         f"{', '.join(NAMES)} and at least 1 image")
    table = rows(DATA / "models" / f"{name}.csv")
    # From the last tensor to the first, as backward goes.
    if name in MEASURED:
        profile = rows(DATA / "profiles" / f"{name}_v100_fp16_b128.csv")
        ready = [float(row["ready_ms"]) / 1e3 for row in profile]
        rest = MEASURED[name] - ready[-1]
    else:
        family = load("resnet50_gf" if "resnet" in name else "alexnet_bn")
        seconds_per_flop = (family["backward_seconds"] /
                            sum(t["forward_flops"] for t in family["tensors"]))
        ready = list(itertools.accumulate(
            float(row["fwd_flops"]) * seconds_per_flop for row in table[::-1]))
        rest = ready[-1] * family["rest_seconds"] / family["backward_seconds"]
    factor = batch / MEASURED_BATCH
    return {"name": name, "batch": batch, "rest_seconds": rest * factor,
            "backward_seconds": ready[-1] * factor,
            "tensors": [{
                "name": row["name"], "elements": int(row["numel"]),
                "shape": row["shape"], "forward_flops": float(row["fwd_flops"]),
                "ready_seconds": seconds * factor}
                for row, seconds in zip(table, ready[::-1], strict=True)]}


def profile(name: str) -> str:
    """Returns the same as a file "profile" of gradientflow_plan: one tensor per
    line, in the order of the pool."""
    plan = load(name)

    def same(seconds: float) -> dict[str, float]:
        return {key: round(seconds, 9)
                for key in ("median", "lower_quartile", "upper_quartile")}

    how = "measured" if name in MEASURED else "derived by benchmarks/lib/models.py"
    head = {"kind": "profile", "version": 1,
            "measured_by": f"{how}; see benchmarks/data/README.md",
            "measured_at": "2019-02-19T00:00:00Z",
            "note": "the date of the paper", "model": name,
            "device": "V100, mixed precision", "dtype": "float16",
            "batch_samples": plan["batch"], "ranks": 1, "steps": 1,
            "forward_seconds": same(plan["rest_seconds"]),
            "backward_seconds": same(plan["backward_seconds"]),
            "wait_seconds": same(0), "optimizer_seconds": same(0),
            "step_seconds": same(plan["rest_seconds"] + plan["backward_seconds"]),
            "step_spread_fraction": 0}
    tensors = ",\n".join(json.dumps({
        "name": tensor["name"], "elements": tensor["elements"],
        "ready_seconds": same(tensor["ready_seconds"])})
        for tensor in plan["tensors"][::-1])
    return f'{json.dumps(head)[:-1]}, "tensors": [\n{tensors}]}}\n'


if __name__ == "__main__":
    if sys.argv[1] == "--profiles":
        for network in NAMES:
            (DATA / "profiles" / f"{network}.json").write_text(profile(network))
    else:
        print(json.dumps(load(sys.argv[1], *map(int, sys.argv[2:]))))
