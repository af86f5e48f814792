"""The networks whose gradients are exchanged: tensors, and when each is ready.

  models.py NAME [BATCH]     the plan that rank programs read, in JSON

Times are those of one V100 in mixed precision. Those of alexnet_bn and
resnet50_gf were measured at batch 128; those of the others are derived: a
backward pass costs twice the forward operations, at the rate that the measured
profile of the same family implies, and the rest of an iteration (forward and
update) keeps its proportion to backward.
"""

from __future__ import annotations

import csv
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


def _tensors(data: pathlib.Path, name: str) -> list[dict[str, Any]]:
    """Returns the tensors of a table, in forward order."""
    return [{"name": row["name"], "elements": int(row["numel"]),
             "shape": row["shape"], "forward_flops": float(row["fwd_flops"])}
            for row in rows(data / "models" / f"{name}.csv")]


def _measured(data: pathlib.Path, name: str) -> dict[str, Any]:
    """Reads a profile, whose rows go from the last tensor to the first."""
    tensors = _tensors(data, name)
    path = data / "profiles" / f"{name}_v100_fp16_b128.csv"
    profile = rows(path)
    if len(profile) != len(tensors):
        raise ValueError(f"{path}: expected {len(tensors)} rows as in the "
                         f"model's table, got {len(profile)}")
    before = 0.0
    for line, (tensor, row) in enumerate(zip(tensors[::-1], profile), 2):
        if (row["name"], int(row["numel"])) != (tensor["name"],
                                                tensor["elements"]):
            raise ValueError(f"{path}:{line}: expected {tensor['name']} of "
                             f"{tensor['elements']}, got {row['name']} of "
                             f"{row['numel']}")
        tensor["ready_seconds"] = float(row["ready_ms"]) / 1e3
        if tensor["ready_seconds"] < before:
            raise ValueError(f"{path}:{line}: ready before its predecessor")
        before = tensor["ready_seconds"]
    return {"name": name, "tensors": tensors, "backward_seconds": before,
            "rest_seconds": MEASURED[name] - before}


def _derived(data: pathlib.Path, name: str) -> dict[str, Any]:
    family = _measured(data,
                       "resnet50_gf" if "resnet" in name else "alexnet_bn")
    tensors = _tensors(data, name)
    seconds_per_flop = (family["backward_seconds"] /
                        sum(t["forward_flops"] for t in family["tensors"]))
    done = 0.0
    for tensor in tensors[::-1]:
        done += tensor["forward_flops"] * seconds_per_flop
        tensor["ready_seconds"] = done
    return {"name": name, "tensors": tensors, "backward_seconds": done,
            "rest_seconds": done * family["rest_seconds"] /
            family["backward_seconds"]}


def load(name: str, batch: int = MEASURED_BATCH,
         data: pathlib.Path = DATA) -> dict[str, Any]:
    """Returns the plan of one iteration of `batch` images; raises ValueError
    for unknown names and damaged tables."""
    if name not in NAMES or batch < 1:
        raise ValueError(f"model {name}, batch {batch}: expected one of "
                         f"{', '.join(NAMES)} and at least 1 image")
    model = (_measured if name in MEASURED else _derived)(data, name)
    factor = batch / MEASURED_BATCH
    for part in (*model["tensors"], model):
        for key in ("ready_seconds", "backward_seconds", "rest_seconds"):
            if key in part:
                part[key] *= factor
    return {**model, "batch": batch}


if __name__ == "__main__":
    print(json.dumps(load(sys.argv[1], *map(int, sys.argv[2:]))))
