"""GradientFlow's own data parallelism: gradients live in one pool, leave in
lazy buckets while backward runs, and the optimiser knows which chunks were
sent.

  torchrun --nproc-per-node 2 data_parallel.py --compression csc
  mpirun -n 2 python3 data_parallel.py
  srun -n 2 python3 data_parallel.py

`--optimizer adamw` trains with one of torch's optimisers and the plain
residual.
"""

from __future__ import annotations

import digits
import launch
import torch
import torch.distributed as dist

import gradientflow.torch as gft


def main() -> None:
    parser = digits.arguments("gradientflow.torch.DataParallel.")
    parser.add_argument("--compression", default="none",
                        choices=("none", "fp16", "bf16", "csc"))
    parser.add_argument("--sparsity", type=float, default=0.85,
                        help="csc: share of the chunks kept back per step")
    parser.add_argument("--chunk-elements", type=int,
                        help="csc: unit of selection; None: by the network's size")
    parser.add_argument("--warmup-steps", type=int, default=132,
                        help="csc: steps in which the sparsity rises")
    parser.add_argument("--optimizer", default="sgd",
                        choices=("sgd", "lars", "adamw"))
    args = parser.parse_args()

    rank, size = launch.environment()
    dist.init_process_group("gradientflow")
    train, test = digits.load(args.data)
    csc = {}
    if args.compression == "csc":
        csc = {"sparsity": args.sparsity, "chunk_elements": args.chunk_elements,
               "warmup_steps": args.warmup_steps}
        # Momentum correction is for the optimisers that know the chunks.
        if args.optimizer != "adamw":
            csc |= {"residual": "momentum", "momentum": 0.9}
    model = gft.DataParallel(
        digits.network(args.seed),
        compression=None if args.compression == "none" else args.compression,
        **csc)
    if args.optimizer == "sgd":
        rate = args.lr
        optimizer = gft.SGD(model, rate, momentum=0.9)
    elif args.optimizer == "lars":
        rate = 50 * args.lr
        optimizer = gft.LARS(model, rate, momentum=0.9)
    else:
        rate = 0.03 * args.lr
        optimizer = torch.optim.AdamW(model.parameters(), rate)
    schedule = digits.falling_rate(optimizer, rate, args, train)

    for epoch in range(args.epochs):
        for share in digits.batches(train, args.batch, epoch, rank, size):
            optimizer.zero_grad()
            digits.loss(model, share, args.batch, size).backward()
            optimizer.step()
            schedule.step()

    if rank == 0:
        print(f"DataParallel, {args.compression}, {size} ranks: test accuracy "
              f"{100 * digits.accuracy(model.module, test):.2f} %, "
              f"{model.stats['bytes_sent']} bytes in the last step")
    model.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
