"""Hooks under DDP: training, 16 bits on the wire, errors."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import (
    SPARSITY_1,
    Given,
    batch,
    flat,
    gradients_of,
    net,
    random_inputs,
    train_steps,
)

SHAPES = {"a": (7, 11), "b": (130,), "c": (3, 5, 7), "d": (1,)}
BACKENDS = ["gloo", "gradientflow"]
# The largest relative error of one rounding.
UNIT = {"fp16": 2**-11, "bf16": 2**-8, "fp32": 2**-24}


def rounded_mean(ranks: Ranks, wire: str, dtype: torch.dtype) -> list[bytes]:
    model = DistributedDataParallel(
        Given(SHAPES, dtypes=dict.fromkeys(SHAPES, dtype)), bucket_cap_mb=5e-4
    )
    hook = gft.register(model, wire)
    bits = []
    own = {torch.float16: 2**-11, torch.bfloat16: 2**-8}.get(dtype, 0)
    for step in range(3):
        inputs = [
            {n: x.to(dtype) for n, x in random_inputs(SHAPES, step, r).items()}
            for r in range(ranks.size)
        ]
        got = gradients_of(model, inputs[ranks.rank])
        every = [flat(each) for each in inputs]
        for name in SHAPES:
            mean = sum(each[name] for each in every) / ranks.size
            largest = max(np.abs(each[name]).max() for each in every)
            # One for each rank's share, each partial sum, and the result.
            allowed = largest * (UNIT[wire] + own) * (ranks.size + 2)
            np.testing.assert_allclose(got[name], mean, atol=allowed, err_msg=name)
            bits.append(got[name].tobytes())
    stats = hook.stats()
    elements = sum(int(np.prod(shape)) for shape in SHAPES.values())
    assert stats["steps"] == 3
    assert stats["payload_bytes"] == 3 * 2 * elements
    return bits


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wire", ["fp16", "bf16"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_takes_means_in_sixteen_bits(size: int, wire: str, backend: str) -> None:
    bits = launch(rounded_mean, size, wire, torch.float32, backend=backend)
    assert all(each == bits[0] for each in bits), "ranks differ"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_takes_means_of_gradients_of_any_type(dtype: torch.dtype, backend: str) -> None:
    bits = launch(rounded_mean, 2, "fp16", dtype, backend=backend)
    assert bits[0] == bits[1], "ranks differ"


def train(ranks: Ranks, compression: str, steps: int, **settings: object) -> tuple:
    model = DistributedDataParallel(net(), bucket_cap_mb=1e-3)
    gft.register(model, compression, **settings)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    return train_steps(ranks, model, optimizer, steps)


def train_csc(ranks: Ranks, sparsity: float, steps: int) -> tuple:
    return train(
        ranks,
        "csc",
        steps,
        sparsity=sparsity,
        chunk_elements=17,
        wire_dtype="fp32" if sparsity == 0 else "fp16",
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [2, 3])
def test_trains_as_one_process_does(size: int, backend: str) -> None:
    for compression, tolerance in (("fp16", 2e-3), ("bf16", 2e-2)):
        results = launch(train, size, compression, 10, backend=backend)
        assert all(bits == results[0][0] for bits, _ in results)
        assert all(apart < tolerance for _, apart in results)
    # With nothing kept back, CSC is dense.
    results = launch(train_csc, size, 0.0, 10, backend=backend)
    assert all(bits == results[0][0] for bits, _ in results)
    assert all(apart < 1e-5 for _, apart in results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_training_keeps_ranks_alike(backend: str) -> None:
    results = launch(train_csc, 3, 0.7, 30, backend=backend)
    assert all(bits == results[0][0] for bits, _ in results)
    assert 1e-5 < results[0][1] < 1.0, "expected another path than the dense one"


def python_calls(ranks: Ranks, compression: str) -> int:
    model = DistributedDataParallel(net(), bucket_cap_mb=1e-4)
    gft.register(model, compression)
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    for step in range(3):
        loss = model(batch(step, ranks.rank)[0]).square().sum()
        ones = torch.ones_like(loss)
        # Calls the engine itself, without the Python of torch.Tensor.backward.
        sys.setprofile(count)
        torch.autograd.Variable._execution_engine.run_backward(
            (loss,), (ones,), False, False, (), True, True
        )
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("compression", ["fp16", "csc"])
def test_backward_runs_no_python(compression: str) -> None:
    # run_backward() and setprofile() of each of the three steps.
    assert max(launch(python_calls, 2, compression)) <= 6


def part_of_the_ranks(ranks: Ranks, compression: str) -> bool:
    group = dist.new_group([0, 2])
    if ranks.rank == 1:
        return True
    model = DistributedDataParallel(Given(SHAPES), process_group=group)
    gft.register(model, compression)
    inputs = [random_inputs(SHAPES, 0, r) for r in (0, 2)]
    got = gradients_of(model, inputs[ranks.rank // 2])
    every = [flat(each) for each in inputs]
    for name in SHAPES:
        mean = (every[0][name] + every[1][name]) / 2
        np.testing.assert_allclose(got[name], mean, atol=0.02)
    return True


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("compression", ["fp16", "csc"])
def test_works_on_a_part_of_the_ranks(compression: str, backend: str) -> None:
    assert launch(part_of_the_ranks, 3, compression, backend=backend) == [True] * 3


def refusals(ranks: Ranks) -> None:
    with pytest.raises(TypeError, match="expected a DistributedDataParallel"):
        gft.register(net(), "fp16")
    model = DistributedDataParallel(net())
    with pytest.raises(ValueError, match="expected 'fp16', 'bf16' or 'csc'"):
        gft.register(model, "int8")
    with pytest.raises(ValueError, match=SPARSITY_1):
        gft.register(model, "csc", sparsity=1.0)
    with pytest.raises(ValueError, match="chunk_elements: expected an integer from 1"):
        gft.register(model, "csc", chunk_elements=-1)
    with pytest.raises(ValueError, match="sparsity=0.5 is for compression='csc'"):
        gft.register(model, "fp16", sparsity=0.5)
    with pytest.raises(ValueError, match="wire_dtype: expected"):
        gft.register(model, "csc", wire_dtype="int8")
    with pytest.raises(ValueError, match="did you mean '2.weight'"):
        gft.register(model, "csc", always_dense=["2.weights"])
    gft.register(model, "csc")
    with pytest.raises(RuntimeError, match="register_comm_hook"):
        gft.register(model, "fp16")


def test_refuses_what_cannot_be() -> None:
    launch(refusals, 1)


def sparse_gradients(ranks: Ranks, compression: str) -> None:
    model = DistributedDataParallel(torch.nn.Embedding(10, 3, sparse=True))
    gft.register(model, compression)
    loss = model(torch.tensor([1, 2])).sum()
    with pytest.raises(ValueError, match="expected dense ones.*sparse=True"):
        loss.backward()


@pytest.mark.parametrize("compression", ["fp16", "csc"])
def test_refuses_sparse_gradients(compression: str) -> None:
    launch(sparse_gradients, 1, compression)
