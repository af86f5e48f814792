"""Models whose gradients are known, and references in float64."""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.distributed as dist

import gradientflow.torch as gft
import harness


# Wherever it is given.
SPARSITY_1 = "sparsity: expected a number from 0 to less than 1, got '1.0'"


def with_csc(compression: str | None, **settings: object) -> dict[str, object]:
    """Returns arguments for `compression`, with `settings` for CSC only."""
    only = settings if compression == "csc" else {}
    return {"compression": compression, **only}


class Given(torch.nn.Module):
    """Parameters whose gradients are given to forward().

    forward(inputs) takes a tensor per parameter, or None for parameters that
    take no part. Its backward makes exactly these the gradients, as it reaches
    each parameter, from the last of `order` to the first.
    """

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        dtypes: dict[str, torch.dtype] | None = None,
        order: list[str] | None = None,
    ) -> None:
        super().__init__()
        for name, shape in shapes.items():
            dtype = (dtypes or {}).get(name, torch.float32)
            value = torch.zeros(shape, dtype=dtype)
            self.register_parameter(name, torch.nn.Parameter(value))
        self.order = order or list(shapes)

    def forward(self, inputs: dict[str, torch.Tensor | None]) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for name in self.order:
            given = inputs.get(name)
            if given is None:
                continue
            # A chain, so that backward reaches them in the reverse order.
            total = total * 1.0 + (getattr(self, name) * given).sum().double()
        return total


def random_inputs(
    shapes: dict[str, tuple[int, ...]], seed: int, rank: int
) -> dict[str, torch.Tensor]:
    """Returns normal numbers, of a different size for each parameter."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return {
        name: torch.randn(shape, generator=generator) * (1 + i % 3)
        for i, (name, shape) in enumerate(shapes.items())
    }


class CscOracle:
    """CSC with an undecayed residual on all ranks at once, in float64.

    It is written from the paper's description, chunk by chunk.
    """

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        size: int,
        sparsity: float,
        chunk_elements: int,
        warmup_steps: int = 0,
        always_dense: tuple[str, ...] = (),
    ) -> None:
        self.size = size
        self.sparsity = sparsity
        self.chunk_elements = chunk_elements
        self.warmup_steps = warmup_steps
        self.always_dense = always_dense
        self.step = 0
        self.layout: list[list[str]] = []
        self.next_selected: list[list[bool]] = []
        self.residual = [
            {name: np.zeros(int(np.prod(shape))) for name, shape in shapes.items()}
            for _ in range(size)
        ]

    def run(
        self, layout: list[list[str]], gradients: list[dict[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        """Returns the means of one step, flat by parameter; `gradients` is by
        rank."""
        selected = self._selected_for(layout)
        means: dict[str, np.ndarray] = {}
        norms: list[list[float]] = []
        for names, chosen in zip(layout, selected):
            sums = [
                np.concatenate(
                    [
                        gradients[rank][name].ravel() + self.residual[rank][name]
                        for name in names
                    ]
                )
                for rank in range(self.size)
            ]
            mean = np.zeros_like(sums[0])
            norms.append([])
            for chunk, sent in enumerate(chosen):
                part = slice(
                    chunk * self.chunk_elements, (chunk + 1) * self.chunk_elements
                )
                if sent:
                    mean[part] = sum(s[part] for s in sums) / self.size
                    norms[-1].append(self.size * np.abs(mean[part]).sum())
                    for s in sums:
                        s[part] = 0
                else:
                    norms[-1].append(sum(np.abs(s[part]).sum() for s in sums))
            begin = 0
            for name in names:
                count = self.residual[0][name].size
                means[name] = mean[begin : begin + count]
                for rank in range(self.size):
                    self.residual[rank][name] = sums[rank][begin : begin + count]
                begin += count
        self.layout = layout
        self.step += 1
        self.next_selected = self._select(layout, norms)
        return means

    def _selected_for(self, layout: list[list[str]]) -> list[list[bool]]:
        selected = []
        same = True
        for index, names in enumerate(layout):
            same = same and index < len(self.layout)
            same = same and self.layout[index] == names
            if same:
                selected.append(self.next_selected[index])
            else:
                selected.append([True] * len(self._dense(names)))
        return selected

    def _dense(self, names: list[str]) -> list[bool]:
        owner = np.concatenate(
            [
                np.full(self.residual[0][name].size, name in self.always_dense)
                for name in names
            ]
        )
        return [
            bool(owner[begin : begin + self.chunk_elements].any())
            for begin in range(0, owner.size, self.chunk_elements)
        ]

    def _select(
        self, layout: list[list[str]], norms: list[list[float]]
    ) -> list[list[bool]]:
        ramp = min(1.0, self.step / self.warmup_steps) if self.warmup_steps else 1.0
        dense = [d for names in layout for d in self._dense(names)]
        flat = [n for bucket in norms for n in bucket]
        share = (1 - self.sparsity * ramp) * len(flat)
        wanted = max(1, int(np.floor(share + 0.5)))
        candidates = [i for i in range(len(flat)) if not dense[i]]
        candidates.sort(key=lambda i: (-flat[i], i))
        chosen = set(candidates[: max(0, wanted - sum(dense))])
        ids = iter(range(len(flat)))
        return [
            [dense[i] or i in chosen for i in (next(ids) for _ in bucket)]
            for bucket in norms
        ]


def flat(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Returns each tensor in float64 and one dimension."""
    return {
        name: tensor.detach().double().flatten().numpy().copy()
        for name, tensor in tensors.items()
    }


def gradients_of(model: torch.nn.Module, *inputs: object) -> dict[str, np.ndarray]:
    """Returns the gradients of one backward pass of model.module, flat, without
    None."""
    model.zero_grad()
    model(*inputs).backward()
    return flat(
        {
            name: parameter.grad
            for name, parameter in model.module.named_parameters()
            if parameter.grad is not None
        }
    )


def force_csc(**settings: object) -> None:
    """Applies settings that are for tests only to the csc hooks made
    afterwards."""
    register = gft._C.register_csc_hook
    gft._C.register_csc_hook = functools.partial(register, **settings)


def force_staging() -> None:
    """Works on copies of the buckets, as for devices that the library cannot
    use."""
    force_csc(staged=True)


class Branches(torch.nn.Module):
    """A stem, and one of two branches; the parameters of the other are unused."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Linear(6, 5)
        self.left = torch.nn.Linear(5, 3)
        self.right = torch.nn.Linear(5, 3)

    def forward(self, inputs: torch.Tensor, left: bool) -> torch.Tensor:
        branch = self.left if left else self.right
        return branch(torch.tanh(self.stem(inputs))).square().sum()


def net(seed: int = 0) -> torch.nn.Module:
    """Returns a small network with odd sizes; equal seeds give equal weights."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(13, 37),
        torch.nn.Tanh(),
        torch.nn.Linear(37, 11),
        torch.nn.Tanh(),
        torch.nn.Linear(11, 3),
    )


def batch(step: int, rank: int, rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns inputs and targets of one rank's share of a step."""
    generator = torch.Generator().manual_seed(7919 * step + rank)
    inputs = torch.randn((rows, 13), generator=generator)
    return inputs, torch.stack([inputs.sum(1), inputs[:, 0], inputs.prod(1)], 1)


def train_alone(
    size: int, steps: int, lr: float = 0.05, momentum: float = 0.9
) -> torch.nn.Module:
    """Returns the model of `size` ranks with an exact exchange, in one process."""
    model = net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum)
    for step in range(steps):
        shares = [batch(step, rank) for rank in range(size)]
        inputs = torch.cat([x for x, _ in shares]).double()
        targets = torch.cat([y for _, y in shares]).double()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return model


def bits_of(model: torch.nn.Module) -> list[bytes]:
    """Returns the bits of every parameter, which are equal on ranks that agree."""
    return [p.detach().contiguous().numpy().tobytes() for p in model.parameters()]


def distance(model: torch.nn.Module, other: torch.nn.Module) -> float:
    """Returns the largest difference between two models' parameters."""
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max(
        float((p.detach().double() - q.detach().double()).abs().max()) for p, q in pairs
    )


def loss_of(model: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
    inputs, targets = batch(step, rank)
    return torch.nn.functional.mse_loss(model(inputs), targets)


def train_steps(
    ranks: harness.Ranks,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
) -> tuple[list[bytes], float]:
    """Trains a net(); returns its bits, and how far it is from train_alone()."""
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step, ranks.rank).backward()
        optimizer.step()
    return bits_of(model), distance(model, train_alone(ranks.size, steps))


def check_mean(
    ranks: harness.Ranks, model: gft.DataParallel, plain: torch.nn.Module
) -> None:
    """Checks that the model's gradients are the mean over the ranks of plain's,
    and `None` if no rank has one."""
    for (name, got), local in zip(
        model.module.named_parameters(), plain.parameters(), strict=True
    ):
        users = torch.tensor(float(local.grad is not None))
        dist.all_reduce(users)
        assert (got.grad is None) == (users == 0), name
        if got.grad is None:
            continue
        mean = torch.zeros_like(local) if local.grad is None else local.grad.clone()
        dist.all_reduce(mean)
        mean /= ranks.size
        torch.testing.assert_close(
            got.grad, mean, atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
