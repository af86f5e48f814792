#!/usr/bin/env python3
"""Images per second on synthetic data, as Horovod's synthetic benchmark prints
them; one configuration, on CPU or CUDA.

  torchrun --nproc-per-node 2 synthetic.py --model resnet50 --batch-size 2 \\
      --configuration dp+csc
  mpirun -n 2 python3 synthetic.py --no-cuda --configuration gloo
  srun python3 synthetic.py --model vgg16 --configuration ours+fp16

Configurations: see configurations.py.
"""

import argparse
import os
import statistics

import launch
import torch
import torch.distributed as dist
from configurations import CONFIGURATIONS, Recipe, open_groups
from torch.utils.benchmark import Timer
from workloads import TORCHVISION, Workload


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="resnet50", choices=TORCHVISION)
    add("--configuration", default="ours", choices=CONFIGURATIONS)
    add("--batch-size", type=int, default=32, help="images per rank")
    add("--num-warmup-batches", type=int, default=10)
    add("--num-batches-per-iter", type=int, default=10)
    add("--num-iters", type=int, default=10)
    add("--no-cuda", action="store_true", help="also where there is a GPU")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    rank, size = launch.environment()
    device = torch.device("cpu")
    if torch.cuda.is_available() and not args.no_cuda:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    (configuration, group), = open_groups([args.configuration])
    workload = Workload(args.model, images=args.batch_size, seed=rank + 1,
                        device=device)
    trainee = configuration.build(workload.model, group, Recipe())

    def step() -> None:
        trainee.optimizer.zero_grad()
        workload.loss(trainee.model).backward()
        trainee.optimizer.step()

    # torch's timer waits for the device, too.
    timer = Timer("step()", globals={"step": step})
    timer.timeit(args.num_warmup_batches)
    rates = []
    for i in range(args.num_iters):
        seconds = timer.timeit(args.num_batches_per_iter).mean
        rates.append(args.batch_size / seconds)
        if rank == 0:
            print(f"Iter #{i}: {rates[-1]:.1f} img/sec per {device.type}",
                  flush=True)
    mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    if rank == 0:
        print(f"Img/sec per {device.type}: {mean:.1f} +-{spread:.1f}\n"
              f"Total img/sec on {size} ranks: {size * mean:.1f} "
              f"+-{size * spread:.1f}")
    trainee.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
