"""gradientflow.torch.DataParallel trains as one process does."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import (
    Given,
    batch,
    bits_of,
    distance,
    flat,
    gradients_of,
    net,
    random_inputs,
    train_alone,
    train_steps,
)

SHAPES = {"a": (7, 11), "b": (130,), "c": (3, 5, 7), "d": (1,), "e": (0,)}
UNIT = {"fp16": 2**-11, "bf16": 2**-8, None: 2**-24}


def means(ranks: Ranks, compression: str | None, bucket_bytes: int) -> list[bytes]:
    model = gft.DataParallel(
        Given(SHAPES), compression=compression, bucket_bytes=bucket_bytes
    )
    assert (model.rank, model.size) == (ranks.rank, ranks.size)
    bits = []
    for step in range(4):
        inputs = [random_inputs(SHAPES, step, r) for r in range(ranks.size)]
        got = gradients_of(model, inputs[ranks.rank])
        assert model.stats["step"] == step
        every = [flat(each) for each in inputs]
        for name in SHAPES:
            mean = sum(each[name] for each in every) / ranks.size
            largest = max(np.abs(each[name]).max(initial=0) for each in every)
            allowed = largest * UNIT[compression] * (ranks.size + 2)
            np.testing.assert_allclose(got[name], mean, atol=allowed, err_msg=name)
            bits.append(got[name].tobytes())
    return bits


@pytest.mark.parametrize("compression", [None, "fp16", "bf16"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_gradients_are_means(size: int, compression: str | None) -> None:
    for bucket_bytes in (0, 300):
        bits = launch(means, size, compression, bucket_bytes)
        assert all(each == bits[0] for each in bits), "ranks differ"


def train(
    ranks: Ranks, compression: str | None, steps: int, **settings: object
) -> tuple[list[bytes], float]:
    # At first the weights differ from rank 0's: they must become the same.
    model = gft.DataParallel(net(ranks.rank), compression=compression, **settings)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    return train_steps(ranks, model, optimizer, steps)


def train_keeping_gradients(ranks: Ranks, steps: int) -> tuple[list[bytes], float]:
    """With zero_grad(set_to_none=False) backward adds in the pool itself."""
    model = gft.DataParallel(net(ranks.rank))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    places = None
    for step in range(steps):
        inputs, targets = batch(step, ranks.rank)
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        now = [p.grad.data_ptr() for p in model.parameters()]
        assert places in (None, now), "a gradient left the pool"
        places = now
    return bits_of(model), distance(model, train_alone(ranks.size, steps))


def train_csc(ranks: Ranks, sparsity: float, steps: int) -> tuple[list[bytes], float]:
    wire = "fp32" if sparsity == 0.01 else "fp16"
    return train(
        ranks, "csc", steps, sparsity=sparsity, chunk_elements=17, wire_dtype=wire
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_trains_as_one_process_does(size: int) -> None:
    for compression, tolerance in ((None, 1e-5), ("fp16", 2e-3), ("bf16", 2e-2)):
        results = launch(train, size, compression, 10)
        assert all(bits == results[0][0] for bits, _ in results)
        assert all(apart < tolerance for _, apart in results)
    results = launch(train_keeping_gradients, size, 10)
    assert all(bits == results[0][0] for bits, _ in results)
    assert all(apart < 1e-5 for _, apart in results)


def test_sparse_training_keeps_ranks_alike() -> None:
    # 1 % of 58 chunks is half a chunk: all chunks are sent.
    results = launch(train_csc, 3, 0.005, 10)
    assert all(bits == results[0][0] for bits, _ in results)
    assert all(apart < 2e-3 for _, apart in results)
    results = launch(train_csc, 3, 0.7, 30)
    assert all(bits == results[0][0] for bits, _ in results)
    assert 1e-4 < results[0][1] < 1.0, "expected another path than the dense one"


def conserve(ranks: Ranks) -> float:
    """With the plain residual, what is not sent comes later, and reads as zero."""
    shapes = {"a": (70,), "b": (9, 13), "c": (55,)}
    model = gft.DataParallel(
        Given(shapes),
        compression="csc",
        sparsity=0.8,
        chunk_elements=10,
        wire_dtype="fp32",
    )
    given = {name: np.zeros(int(np.prod(s))) for name, s in shapes.items()}
    taken = {name: np.zeros_like(value) for name, value in given.items()}
    for step in range(40):
        inputs = random_inputs(shapes, step, ranks.rank)
        if step >= 20:  # No new gradients: the residual drains.
            inputs = {name: torch.zeros_like(x) for name, x in inputs.items()}
        got = gradients_of(model, inputs)
        stats = model.stats
        assert stats["chunks"] == 25
        assert stats["selected_chunks"] == (25 if step == 0 else 5)
        for name, value in flat(inputs).items():
            given[name] += value
            taken[name] += got[name]
    worst = 0.0
    for name in shapes:
        total = torch.from_numpy(given[name])
        dist.all_reduce(total)
        worst = max(
            worst, float(np.abs(total.numpy() / ranks.size - taken[name]).max())
        )
    return worst


@pytest.mark.parametrize("size", [1, 3])
def test_loses_no_gradient(size: int) -> None:
    assert max(launch(conserve, size, backend="gloo")) < 1e-4


def types(ranks: Ranks, dtypes: dict[str, torch.dtype]) -> None:
    shapes = {"a": (7, 11), "b": (130,), "c": (3, 5)}
    model = gft.DataParallel(Given(shapes, dtypes))
    for step in range(3):
        every = []
        for r in range(ranks.size):
            given = random_inputs(shapes, step, r)
            every.append({n: x.to(dtypes[n]) for n, x in given.items()})
        got = gradients_of(model, every[ranks.rank])
        for name, parameter in model.module.named_parameters():
            assert parameter.grad.dtype == parameter.dtype == dtypes[name]
            mean = sum(flat(each)[name] for each in every) / ranks.size
            narrow = {torch.float16: 2**-10, torch.bfloat16: 2**-7}
            unit = narrow.get(dtypes[name], 2**-22)
            largest = max(np.abs(flat(each)[name]).max() for each in every)
            np.testing.assert_allclose(got[name], mean, atol=4 * unit * largest)


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float16,) * 3,
        (torch.bfloat16,) * 3,
        (torch.float32, torch.float16, torch.bfloat16),
        (torch.bfloat16, torch.float16, torch.bfloat16),
    ],
)
def test_parameters_of_any_type(dtypes: tuple[torch.dtype, ...]) -> None:
    launch(types, 2, dict(zip("abc", dtypes)))


def python_calls(ranks: Ranks, steps: int) -> int:
    model = gft.DataParallel(net())
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    for step in range(steps):
        loss = model(batch(step, ranks.rank)[0]).square().sum()
        sys.setprofile(count)
        torch.autograd.Variable._execution_engine.run_backward(
            (loss,), (torch.ones_like(loss),), False, False, (), True, True
        )
        sys.setprofile(None)
    assert model.stats["step"] == steps - 1
    return calls


def test_backward_runs_no_python() -> None:
    # ones_like(), run_backward(), setprofile() of each step.
    assert max(launch(python_calls, 2, 3)) <= 9
