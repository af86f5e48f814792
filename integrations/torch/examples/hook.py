"""Compressed gradients under DistributedDataParallel, over any process group:
the call of gft.register() is all it takes.

  torchrun --nproc-per-node 2 hook.py --compression csc
  mpirun -n 2 python3 hook.py --compression fp16 --backend gloo
  srun -n 2 python3 hook.py

`--checkpoint FILE` saves after each epoch and continues from there: weights,
momentum, and what each rank has kept back. The learning rate follows the --lr
and --epochs of the current run, so that a finished training can continue with
more epochs.
"""

from __future__ import annotations

import pathlib

import digits
import launch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft


def main() -> None:
    parser = digits.arguments("DistributedDataParallel with our hook.")
    parser.add_argument("--backend", default="gradientflow",
                        help="any: gloo, nccl, ...")
    parser.add_argument("--compression", default="csc",
                        choices=("fp16", "bf16", "csc"))
    parser.add_argument("--sparsity", type=float, default=0.85,
                        help="csc: share of the chunks kept back per step")
    parser.add_argument("--chunk-elements", type=int,
                        help="csc: unit of selection; None: by the network's size")
    parser.add_argument("--warmup-steps", type=int, default=132,
                        help="csc: steps in which the sparsity rises")
    parser.add_argument("--checkpoint", type=pathlib.Path,
                        help="one file per rank; %%r stands for the rank")
    args = parser.parse_args()

    rank, size = launch.environment()
    dist.init_process_group(args.backend)
    train, test = digits.load(args.data)
    model = DistributedDataParallel(digits.network(args.seed))
    csc = {}
    if args.compression == "csc":
        csc = {"sparsity": args.sparsity, "chunk_elements": args.chunk_elements,
               "warmup_steps": args.warmup_steps}
    hook = gft.register(model, args.compression, **csc)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)

    # What is kept back differs from rank to rank: each saves its own.
    parts = {"model": model, "hook": hook, "optimizer": optimizer}
    saved = args.checkpoint and pathlib.Path(
        str(args.checkpoint).replace("%r", str(rank)))
    if saved == args.checkpoint and saved and size > 1:
        parser.error(f"--checkpoint {saved}: expected %r in the name, since "
                     "each rank writes a file")
    begin = 0
    if saved and saved.exists():
        state = torch.load(saved)
        begin = state.pop("epoch")
        for name, part in parts.items():
            part.load_state_dict(state[name])
    schedule = digits.falling_rate(optimizer, args.lr, args, train, begin)

    for epoch in range(begin, args.epochs):
        for share in digits.batches(train, args.batch, epoch, rank, size):
            optimizer.zero_grad()
            digits.loss(model, share, args.batch, size).backward()
            optimizer.step()
            schedule.step()
        if saved:
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save({"epoch": epoch + 1, **state}, saved)

    if rank == 0:
        stats = hook.stats()
        print(f"{args.compression} over {args.backend}, {size} ranks: "
              f"test accuracy "
              f"{100 * digits.accuracy(model.module, test):.2f} %, "
              f"{stats['payload_bytes'] / max(stats['steps'], 1):.0f} bytes per "
              f"step and rank")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
