"""DataParallel with gradients that are not finite, and with GradScaler."""

from __future__ import annotations

import copy

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
    flat,
    gradients_of,
    net,
    random_inputs,
    with_csc,
)


def train_scaled(
    ranks: Ranks, compression: str | None, optimizer: str
) -> tuple[list[float], list[bytes]]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
    residual = "momentum" if optimizer == "own" else "plain"
    csc = with_csc(compression, sparsity=0.6, chunk_elements=20, residual=residual)
    model = gft.DataParallel(net(), grad_scaler=scaler, **csc)
    if optimizer == "own":
        opt: torch.optim.Optimizer = gft.SGD(model, 0.02, 0.9)
    else:
        opt = torch.optim.SGD(model.parameters(), 0.02)
    scales = []
    for step in range(12):
        inputs, targets = batch(step, ranks.rank)
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        if step == 5 and ranks.rank == 1:
            loss = loss * float("inf")
        before = bits_of(model)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(opt)
        scaler.update()
        assert (bits_of(model) == before) == (step == 5), f"step {step}"
        scales.append(scaler.get_scale())
    for p in model.parameters():
        assert p.isfinite().all()
    return scales, bits_of(model)


@pytest.mark.parametrize("optimizer", ["own", "torch"])
@pytest.mark.parametrize("compression", [None, "fp16", "csc"])
def test_grad_scaler_skips_on_all_ranks(
    compression: str | None, optimizer: str
) -> None:
    results = launch(train_scaled, 3, compression, optimizer, backend="gloo")
    assert all(result == results[0] for result in results)
    scales = results[0][0]
    assert [b / a for a, b in zip(scales, scales[1:])].count(0.5) == 1


class FixedScale:
    """The methods of a GradScaler that DataParallel calls."""

    def __init__(self) -> None:
        self.scale = 1.0

    def get_scale(self) -> float:
        return self.scale


def rescale(ranks: Ranks) -> None:
    """A residual follows the scale: in unscaled units nothing is lost."""
    shapes = {"w": (40,)}
    scaler = FixedScale()
    model = gft.DataParallel(
        Given(shapes),
        compression="csc",
        sparsity=0.75,
        chunk_elements=10,
        wire_dtype="fp32",
        grad_scaler=scaler,
    )
    given, taken = np.zeros(40), np.zeros(40)
    for step, scale in enumerate([4.0, 4.0, 1024.0, 0.5, 0.5] + [8.0] * 12):
        scaler.scale = scale
        x = random_inputs(shapes, step, ranks.rank)["w"]
        x = x if step < 5 else torch.zeros(40)
        given += x.double().numpy()
        taken += gradients_of(model, {"w": x * scale})["w"] / scale
    total = torch.from_numpy(given)
    dist.all_reduce(total)
    np.testing.assert_allclose(total.numpy() / ranks.size, taken, atol=1e-5)


def test_residual_follows_the_loss_scale() -> None:
    launch(rescale, 2, backend="gloo")


def poison(ranks: Ranks, compression: str | None, value: float) -> list[bool]:
    shapes = {"v": (45,), "w": (64,)}
    csc = with_csc(compression, sparsity=0.7, chunk_elements=10)
    model = gft.DataParallel(Given(shapes), **csc)
    finite = []
    for step in range(10):
        inputs = random_inputs(shapes, step, ranks.rank)
        # Each chunk in turn, so that some are kept back and some are sent.
        if step in (2, 5, 8) and ranks.rank == ranks.size - 1:
            inputs["w"][10 * step % 64] = value
        got = gradients_of(model, inputs)
        finite.append(all(np.isfinite(g).all() for g in got.values()))
        assert model.stats["nonfinite"] != finite[-1]
    return finite


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("compression", [None, "fp16", "csc"])
def test_a_bad_gradient_is_seen_by_all(compression: str | None, value: float) -> None:
    results = launch(poison, 3, compression, value, backend="gloo")
    assert all(result == results[0] for result in results)
    assert [step for step, finite in enumerate(results[0]) if not finite] == [2, 5, 8]


def go_back(ranks: Ranks, compression: str | None) -> None:
    """Losses are scaled by hand, with the scale given as "loss_scale"."""
    csc = with_csc(compression, sparsity=0.5, chunk_elements=20, wire_dtype="fp32")
    model = gft.DataParallel(net(), options={"loss_scale": "1024"}, **csc)

    def step(number: int) -> dict[str, np.ndarray]:
        inputs, targets = batch(number, ranks.rank)
        model.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        (1024 * loss).backward()
        return flat({n: p.grad for n, p in model.module.named_parameters()})

    step(0)
    state = model.comm_state_dict()
    once = step(1)
    model.load_comm_state_dict(state)
    for name, again in step(1).items():
        np.testing.assert_array_equal(again, once[name], name)


@pytest.mark.parametrize("compression", [None, "csc"])
def test_the_loss_scale_outlives_a_restored_state(compression: str | None) -> None:
    launch(go_back, 2, compression)


def odd_scale(ranks: Ranks) -> None:
    """float32 cannot hold 1/1000, so the residual must not be multiplied by it.
    """

    def make() -> tuple[torch.amp.GradScaler, gft.DataParallel, torch.optim.Optimizer]:
        scaler = torch.amp.GradScaler("cpu", init_scale=1000.0)
        csc = {"sparsity": 0.9, "chunk_elements": 20, "wire_dtype": "fp32"}
        options = {"bucket_bytes": "500", "algorithm": "ring"}
        model = gft.DataParallel(
            net(), compression="csc", grad_scaler=scaler, options=options, **csc
        )
        return scaler, model, torch.optim.SGD(model.parameters(), 0.1)

    def train(run: tuple, first: int, last: int) -> list[bytes]:
        scaler, model, optimizer = run
        for step in range(first, last):
            inputs, targets = batch(step, ranks.rank)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return bits_of(model)

    through = make()
    train(through, 0, 5)
    weights = copy.deepcopy(through[1].state_dict())
    scale, kept = through[0].state_dict(), through[1].comm_state_dict()
    expected = train(through, 5, 20)
    again = make()
    again[1].load_state_dict(weights)
    again[1].load_comm_state_dict(kept)
    again[0].load_state_dict(scale)
    assert torch.equal(again[1].comm_state_dict()["session"], kept["session"])
    assert train(again, 5, 20) == expected


def test_goes_on_bit_for_bit_with_any_scale() -> None:
    launch(odd_scale, 2)
