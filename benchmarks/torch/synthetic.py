#!/usr/bin/env python3
"""Images per second on synthetic data, as Horovod's synthetic benchmark prints
them; one configuration, on CPU or CUDA.

  torchrun --nproc-per-node 2 synthetic.py --model resnet50 --batch-size 2 \\
      --configuration dp+csc
  mpirun -n 2 python3 synthetic.py --no-cuda --configuration gloo
  srun python3 synthetic.py --model vgg16 --configuration ours+fp16

Configurations: see configurations.py.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import timeit

import torch
import torch.distributed as dist
from configurations import CONFIGURATIONS, Recipe, named, open_groups
from workloads import TORCHVISION, Workload

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] /
                    "integrations" / "torch" / "examples"))
import launch  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="resnet50", choices=TORCHVISION)
    add("--configuration", default="ours", choices=list(CONFIGURATIONS))
    add("--batch-size", type=int, default=32, help="images per rank")
    add("--num-warmup-batches", type=int, default=10)
    add("--num-batches-per-iter", type=int, default=10)
    add("--num-iters", type=int, default=10)
    add("--no-cuda", action="store_true", help="also where there is a GPU")
    add("--sparsity", type=float, default=0.85)
    add("--chunk-elements", type=int, default=32000)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    rank, size = launch.environment()
    cuda = torch.cuda.is_available() and not args.no_cuda
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        local_rank %= torch.cuda.device_count()
        torch.cuda.set_device(local_rank)
    kind = "GPU" if cuda else "CPU"

    def log(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    dist.init_process_group("gloo")
    configuration = named([args.configuration])[0]
    group = open_groups([configuration])[configuration.backend]
    workload = Workload(
        args.model, images=args.batch_size, seed=rank + 1,
        device=torch.device("cuda", local_rank) if cuda else None)
    trainee = configuration.build(
        workload.model, group,
        Recipe(sparsity=args.sparsity, chunk_elements=args.chunk_elements))

    def step() -> None:
        trainee.optimizer.zero_grad()
        workload.loss(trainee.model).backward()
        trainee.optimizer.step()

    def seconds(steps: int) -> float:
        taken = timeit.timeit(step, number=steps)
        if not cuda:
            return taken
        # Steps that are submitted are not yet done.
        return taken + timeit.timeit(torch.cuda.synchronize, number=1)

    log(f"Model: {args.model}\nBatch size: {args.batch_size}\n"
        f"Number of {kind}s: {size}\nConfiguration: {args.configuration}")
    log("Running warmup...")
    seconds(args.num_warmup_batches)
    log("Running benchmark...")
    rates = []
    for i in range(args.num_iters):
        taken = seconds(args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / taken)
        log(f"Iter #{i}: {rates[-1]:.1f} img/sec per {kind}")
    mean = statistics.fmean(rates)
    confidence = 1.96 * statistics.pstdev(rates)
    log(f"Img/sec per {kind}: {mean:.1f} +-{confidence:.1f}")
    log(f"Total img/sec on {size} {kind}(s): {size * mean:.1f} "
        f"+-{size * confidence:.1f}")
    trainee.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
