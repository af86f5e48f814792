"""GradientFlow under DistributedDataParallel: only the name of the backend
changes.

  torchrun --nproc-per-node 2 backend.py
  mpirun -n 2 python3 backend.py
  srun -n 2 python3 backend.py

`--backend gloo` trains the same model with torch's own backend, for comparison.
"""

from __future__ import annotations

import digits
import launch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch  # noqa: F401  Registers the backend.


def main() -> None:
    parser = digits.arguments("DistributedDataParallel on a backend.")
    parser.add_argument("--backend", default="gradientflow",
                        help="or cpu:gradientflow,cuda:nccl, gloo, ...")
    args = parser.parse_args()

    rank, size = launch.environment()
    dist.init_process_group(args.backend)
    train, test = digits.load(args.data)
    model = DistributedDataParallel(digits.network(args.seed))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    schedule = digits.falling_rate(optimizer, args.lr, args, train)

    for epoch in range(args.epochs):
        for share in digits.batches(train, args.batch, epoch, rank, size):
            optimizer.zero_grad()
            digits.loss(model, share, args.batch, size).backward()
            optimizer.step()
            schedule.step()

    if rank == 0:
        print(f"{args.backend}, {size} ranks: test accuracy "
              f"{100 * digits.accuracy(model.module, test):.2f} %")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
