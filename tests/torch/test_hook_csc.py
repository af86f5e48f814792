"""CSC under DDP, against a float64 reference of the algorithm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import (
    CscOracle,
    Given,
    flat,
    force_csc,
    force_staging,
    gradients_of,
    random_inputs,
)

SHAPES = {
    "a": (7, 11),
    "b": (130,),
    "c": (3, 5, 7),
    "d": (1,),
    "e": (64, 9),
    "f": (257,),
}
# Backward makes them in another order than that of registration, so that DDP
# rebuilds its buckets after the first step.
ORDER = ["d", "f", "a", "e", "b", "c"]
BUCKET_MB = 1000 / 2**20


def follow_reference(
    ranks: Ranks,
    steps: int,
    wire: str = "fp32",
    staged: bool = False,
    as_view: bool = False,
    warmup: int = 0,
    dense: tuple[str, ...] = (),
) -> tuple[dict[str, int], int]:
    if staged:
        force_staging()
    model = DistributedDataParallel(
        Given(SHAPES, order=ORDER),
        bucket_cap_mb=BUCKET_MB,
        gradient_as_bucket_view=as_view,
    )
    hook = gft.register(
        model,
        "csc",
        sparsity=0.6,
        chunk_elements=50,
        warmup_steps=warmup,
        wire_dtype=wire,
        always_dense=dense,
    )
    oracle = CscOracle(SHAPES, ranks.size, 0.6, 50, warmup, dense)
    tolerance = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 8e-2}[wire]
    layouts = []
    for step in range(steps):
        inputs = [random_inputs(SHAPES, step, r) for r in range(ranks.size)]
        got = gradients_of(model, inputs[ranks.rank])
        state = hook.state_dict()
        layouts.append(state["buckets"])
        expected = oracle.run(state["buckets"], [flat(each) for each in inputs])
        for name in SHAPES:
            np.testing.assert_allclose(
                got[name], expected[name], atol=tolerance, err_msg=f"{step} {name}"
            )
            np.testing.assert_allclose(
                state["residual"][name].double().flatten().numpy(),
                oracle.residual[ranks.rank][name],
                atol=tolerance,
            )
        chosen = [[bool(c) for c in bucket] for bucket in state["selected"]]
        assert chosen == oracle.next_selected, f"step {step}"
    assert layouts[0] != layouts[1], "expected DDP to rebuild its buckets"
    return hook.stats(), sum(map(len, oracle.next_selected))


@pytest.mark.parametrize("backend", ["gloo", "gradientflow"])
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_follows_the_reference(size: int, staged: bool, backend: str) -> None:
    results = launch(follow_reference, size, 7, "fp32", staged, backend=backend)
    for stats, chunks in results:
        assert stats["steps"] == 7
        assert stats["chunks"] == chunks
        assert stats["selected_chunks"] == int(0.4 * chunks + 0.5)


@pytest.mark.parametrize("wire", ["fp16", "bf16"])
@pytest.mark.parametrize("backend", ["gloo", "gradientflow"])
def test_sixteen_bits_between_ranks(wire: str, backend: str) -> None:
    # Two steps only: later ones may select differently from float64.
    launch(follow_reference, 2, 2, wire, False, True, backend=backend)
    launch(follow_reference, 3, 2, wire, True, False, backend=backend)


def test_warm_up_and_always_dense() -> None:
    launch(follow_reference, 2, 8, "fp32", False, True, 5, ("b", "d"))


def golden(ranks: Ranks, staged: bool) -> None:
    """The golden values of tests/csc/csc_golden.cc: momentum 0.9, gradients 1."""
    force_csc(staged=staged, keep_factor=0.9)
    model = DistributedDataParallel(Given({"w": (5,)}))
    hook = gft.register(
        model, "csc", sparsity=0.5, chunk_elements=3, wire_dtype="fp32"
    )

    def step(quiet: float, loud: float) -> np.ndarray:
        inputs = torch.tensor([quiet] * 3 + [loud] * 2)
        return gradients_of(model, {"w": inputs})["w"][:3]

    step(0, 9)  # Sends everything; no residual.
    kept = [0.9, 1.71, 0, 0.9, 0]
    sent = [0, 0, 2.71, 0, 1.9]
    for index, loud in enumerate([9, 0.5, 5, -4, 0]):
        np.testing.assert_allclose(step(1, loud), [sent[index]] * 3, atol=1e-6)
        residual = hook.state_dict()["residual"]["w"][:3]
        np.testing.assert_allclose(residual, [kept[index]] * 3, atol=1e-6)


@pytest.mark.parametrize("staged", [False, True])
def test_golden_values(staged: bool) -> None:
    launch(golden, 1, staged, backend="gloo")


def conserve(ranks: Ranks, dtype: torch.dtype, wire: str) -> float:
    model = DistributedDataParallel(
        Given(SHAPES, dtypes=dict.fromkeys(SHAPES, dtype)), bucket_cap_mb=BUCKET_MB
    )
    hook = gft.register(model, "csc", sparsity=0.8, chunk_elements=33, wire_dtype=wire)
    taken = {name: np.zeros(int(np.prod(s))) for name, s in SHAPES.items()}
    given = {name: np.zeros_like(value) for name, value in taken.items()}
    for step in range(20):
        inputs = random_inputs(SHAPES, step, ranks.rank)
        inputs = {name: x.to(dtype) for name, x in inputs.items()}
        got = gradients_of(model, inputs)
        for name, value in flat(inputs).items():
            taken[name] += got[name]
            given[name] += value
    kept = flat(hook.state_dict()["residual"])
    worst = 0.0
    for name in SHAPES:
        sent = torch.from_numpy(given[name] - kept[name])
        dist.all_reduce(sent)
        lost = sent.numpy() / ranks.size - taken[name]
        worst = max(worst, float(np.abs(lost).max()))
    return worst


@pytest.mark.parametrize("size", [2, 3])
def test_loses_no_gradient(size: int) -> None:
    assert max(launch(conserve, size, torch.float32, "fp32", backend="gloo")) < 1e-4


def test_loses_no_gradient_of_sixteen_bits() -> None:
    # Sums of up to 20 numbers of size 3, each rounded once when it is sent.
    worst = launch(conserve, 2, torch.bfloat16, "bf16")
    assert max(worst) < 20 * 3 * 2**-8


def mixed_types(ranks: Ranks) -> None:
    shapes = {"f32": (300,), "f64": (40,), "f16": (120,)}
    types = {"f64": torch.float64, "f16": torch.float16}
    model = DistributedDataParallel(Given(shapes, types))
    hook = gft.register(model, "csc", sparsity=0.5, chunk_elements=20)
    for step in range(3):
        inputs = [random_inputs(shapes, step, r) for r in range(ranks.size)]
        for each in inputs:
            each["f64"] = each["f64"].double()
            each["f16"] = each["f16"].half()
        got = gradients_of(model, inputs[ranks.rank])
        # The library has no kernels for float64: it is sent whole, as it is.
        mean = sum(each["f64"] for each in inputs) / ranks.size
        np.testing.assert_allclose(got["f64"], mean.numpy(), atol=1e-14)
    stats = hook.stats()
    assert stats["chunks"] == 15 + 6
    assert stats["selected_chunks"] == 11
    assert "f64" not in hook.state_dict()["residual"]


@pytest.mark.parametrize("backend", ["gloo", "gradientflow"])
def test_buckets_of_several_types(backend: str) -> None:
    launch(mixed_types, 3, backend=backend)


def bytes_per_step(ranks: Ranks) -> list[int]:
    shapes = {"w": (100_000,)}
    model = DistributedDataParallel(Given(shapes))
    hook = gft.register(model, "csc", sparsity=0.9, chunk_elements=1000)
    sent = [0]
    for step in range(3):
        gradients_of(model, random_inputs(shapes, step, ranks.rank))
        sent.append(hook.stats()["payload_bytes"])
    return [after - before for before, after in zip(sent, sent[1:])]


def test_sends_what_it_selected_and_little_else() -> None:
    # 100 chunks: their norms in float32, and a mark for each.
    for sent in launch(bytes_per_step, 2):
        assert sent == [200_000 + 200 + 400, *[20_000 + 200 + 400] * 2]


def channels_last(ranks: Ranks) -> None:
    """Gradients whose memory is not in the order of their indices."""
    model = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    ddp = DistributedDataParallel(model)
    hook = gft.register(ddp, "csc", sparsity=0.9, chunk_elements=16, wire_dtype="fp32")
    total = torch.zeros_like(model.weight)
    local = torch.zeros_like(model.weight)
    for step in range(6):
        inputs = torch.randn(
            (2, 3, 5, 5),
            generator=torch.Generator().manual_seed(10 * step + ranks.rank),
        )
        local += torch.autograd.grad(model(inputs).square().sum(), model.weight)[0]
        ddp.zero_grad()
        ddp(inputs).square().sum().backward()
        total += model.weight.grad
    sent = local - hook.state_dict()["residual"]["weight"].to(local.device)
    dist.all_reduce(sent)
    torch.testing.assert_close(sent / ranks.size, total, atol=2e-3, rtol=1e-4)


def test_keeps_back_gradients_of_any_memory_format() -> None:
    launch(channels_last, 2)
