#!/usr/bin/env python3
"""Ways to train with torch, compared in one run, alternating.

  compare.py                               AlexNet and ResNet-50, loopback
  compare.py --links loopback,10,1         and on shaped links (needs root)
  compare.py --backward real --batch 2     gradients that are computed

Columns: a step and its spread over the rounds; its rate against DDP over Gloo,
and over Gloo with torch's FP16 hook (medians of the ratios within a round); what
it takes beyond a step under no_sync(), and that less DDP's own copies, which is
communication that backward does not hide; the optimiser; CPU time per rank;
bytes per rank on the interface, headers and all; and as the library counts them,
in shared memory too. Configurations: see configurations.py.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

import report
from arguments import at_least, links, names
from configurations import named
from network import Network
from ranks import RankError, run_ranks
from turns import Case, Recipe, rank_main
from workloads import PROFILED, TORCHVISION

DEFAULT = ("none,ddp+none,gloo,gloo+fp16,gloo+powersgd,ours,ours+fp16,"
           "ours+csc,dp,dp+fp16,dp+csc")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", type=names, default="alexnet,resnet50",
        help=f"of {', '.join(TORCHVISION + PROFILED)}")
    add("--links", type=links, default="loopback",
        help="list of loopback and Gb/s of each link")
    add("--configurations", type=names, default=DEFAULT)
    add("--ranks", type=at_least(2), default=2)
    add("--rounds", type=at_least(1), default=5)
    add("--turn-seconds", type=float, default=2.0,
        help="timed per configuration and round, about; at least 2 steps")
    add("--backward", choices=("replay", "real"), default="replay")
    add("--backward-ms", type=float, default=None,
        help="replay: time of a GPU's backward, shared out by the layers' "
        "operations (default: as profiled for the paper's models, else 0)")
    add("--batch", type=at_least(1), default=2, help="real: images per rank")
    add("--fabric", choices=("auto", "shm", "tcp"), default="auto",
        help="of ours; auto: shared memory on loopback")
    add("--sparsity", type=float, default=0.85)
    add("--chunk-elements", type=at_least(1), default=32000)
    add("--json", type=pathlib.Path, help="append rows there")
    args = parser.parse_args()
    try:
        named(args.configurations)
    except ValueError as error:
        parser.error(f"--configurations: {error}")
    known = TORCHVISION + (() if args.backward == "real" else PROFILED)
    for model in args.models:
        if model not in known:
            parser.error(f"--models: {model}: expected one of "
                         f"{', '.join(known)} with a {args.backward} backward")
    return args


def run_case(args: argparse.Namespace, model: str, network: Network) -> None:
    case = Case(
        model=model, backward=args.backward, batch=args.batch,
        backward_seconds=(None if args.backward_ms is None else
                          args.backward_ms / 1e3),
        names=tuple(args.configurations), rounds=args.rounds,
        turn_seconds=args.turn_seconds,
        recipe=Recipe(sparsity=args.sparsity,
                      chunk_elements=args.chunk_elements))
    environment = {"GRADIENTFLOW_FABRIC": args.fabric}
    if args.backward == "replay":
        # Memory once freed is kept, as a GPU's allocator does: else the pages
        # of new gradients cost more than some exchanges.
        environment |= {"MALLOC_MMAP_MAX_": "0",
                        "MALLOC_TRIM_THRESHOLD_": str(1 << 36)}
    rows = run_ranks(rank_main, network, case, network,
                     environment=environment)[0]
    steps = report.summarise(rows)
    lists = report.summarise_allreduces(rows)
    what = {"replay": "gradients replayed", "real":
            f"real backward of {args.batch} images"}[args.backward]
    shared = ", with others' bytes" if network.shared else ""
    print(f"\n{model}, {args.ranks} ranks, {network.name}{shared}, fabric "
          f"{args.fabric}, {what}\n")
    print(report.step_table(steps) + "\n")
    print(report.allreduce_table(lists), flush=True)
    common = {"benchmark": "compare", "model": model, "ranks": args.ranks,
              "link": network.name, "fabric": args.fabric,
              "backward": args.backward, "backward_ms": args.backward_ms,
              "batch": args.batch}
    report.append_json(args.json, [{**common, **row}
                                   for row in steps + lists])


def main() -> None:
    args = parse_arguments()
    try:
        for gbps in args.links:
            for model in args.models:
                with Network(args.ranks, gbps) as network:
                    run_case(args, model, network)
    except (OSError, RankError) as error:
        sys.exit(f"compare: {error}")


if __name__ == "__main__":
    main()
