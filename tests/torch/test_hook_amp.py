"""CSC with gradients that are not finite, and with GradScaler."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import (
    Given,
    batch,
    bits_of,
    flat,
    force_staging,
    gradients_of,
    net,
    random_inputs,
)

SHAPES = {"v": (45,), "w": (64,)}
BAD_STEP = 4


def poison(ranks: Ranks, value: float, in_sent: bool, staged: bool) -> dict:
    """One rank's gradient has a bad element in one step."""
    if staged:
        force_staging()
    model = DistributedDataParallel(Given(SHAPES), bucket_cap_mb=1e-5)
    hook = gft.register(
        model, "csc", sparsity=0.7, chunk_elements=10, wire_dtype="fp32"
    )
    given = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    taken = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    skipped = []
    for step in range(12):
        inputs = random_inputs(SHAPES, step, ranks.rank)
        bad = None
        if step == BAD_STEP:
            state = hook.state_dict()
            name, chunk = next(
                (names[0], chunk)
                for names, chosen in zip(state["buckets"], state["selected"])
                for chunk, sent in enumerate(chosen.tolist())
                if bool(sent) == in_sent
            )
            bad = name, 10 * chunk + 3
            if ranks.rank == ranks.size - 1:
                inputs[name][bad[1]] = value
        got = gradients_of(model, inputs)
        finite = {name: np.isfinite(g).all() for name, g in got.items()}
        if not all(finite.values()):
            skipped.append(step)
            assert not finite[bad[0]], "another parameter than the one with the inf"
            # That gradient is lost, as it would be without CSC; so are those
            # that the other ranks sent for the same element.
            if ranks.rank == ranks.size - 1 or in_sent:
                inputs[bad[0]][bad[1]] = 0
        for name in SHAPES:
            given[name] += inputs[name].double().numpy()
            if step not in skipped:
                taken[name] += got[name]
        if step == BAD_STEP and in_sent:
            # The residual of the bad element was sent with it.
            given[bad[0]][bad[1]] = taken[bad[0]][bad[1]] = 0
            lost = bad
    residual = hook.state_dict()["residual"]
    worst = 0.0
    for name in SHAPES:
        assert residual[name].isfinite().all()
        sent = torch.from_numpy(given[name] - residual[name].double().numpy())
        dist.all_reduce(sent)
        off = np.abs(sent.numpy() / ranks.size - taken[name])
        if in_sent and name == lost[0]:
            off[lost[1]] = 0
        worst = max(worst, float(off.max()))
    return {"skipped": skipped, "worst": worst}


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("in_sent", [False, True])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_bad_gradient_is_seen_by_all_and_then_forgotten(
    value: float, in_sent: bool, staged: bool
) -> None:
    for backend in ("gloo", "gradientflow"):
        results = launch(poison, 3, value, in_sent, staged, backend=backend)
        for result in results:
            assert result["skipped"] == [BAD_STEP]
            # Everything else that was kept back or sent in that step comes
            # later.
            assert result["worst"] < 1e-4


def overflow(ranks: Ranks) -> list[bool]:
    """A value too large for float16 on the wire, on one rank."""
    shapes = {"w": (50,)}
    model = DistributedDataParallel(Given(shapes))
    gft.register(model, "csc", sparsity=0.5, chunk_elements=10, wire_dtype="fp16")
    finite = []
    for step in range(4):
        inputs = {"w": torch.ones(50)}
        if step == 0 and ranks.rank == 1:
            inputs["w"][7] = 1e6
        finite.append(bool(np.isfinite(gradients_of(model, inputs)["w"]).all()))
    return finite


def test_overflow_on_the_wire_is_seen_by_all() -> None:
    assert launch(overflow, 2, backend="gloo") == [[False, True, True, True]] * 2


def train_scaled(ranks: Ranks, follow: bool) -> tuple[list[float], list[bytes], float]:
    model = DistributedDataParallel(net(), bucket_cap_mb=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
    gft.register(
        model,
        "csc",
        sparsity=0.6,
        chunk_elements=20,
        wire_dtype="fp32",
        grad_scaler=scaler if follow else None,
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    scales = []
    total = torch.zeros(13 * 37 + 37)
    for step in range(12):
        inputs, targets = batch(step, ranks.rank)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        if step == 5 and ranks.rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    for p in model.parameters():
        assert p.isfinite().all()
    return scales, bits_of(model), float(total.sum())


def test_grad_scaler_skips_on_all_ranks() -> None:
    results = launch(train_scaled, 3, True)
    assert all(result == results[0] for result in results)
    scales = results[0][0]
    assert scales[5] == scales[4] / 2, "expected a skipped step"
    assert [b / a for a, b in zip(scales, scales[1:])].count(0.5) == 1


def rescale(ranks: Ranks) -> None:
    """A residual follows the scale: in unscaled units nothing is lost."""
    shapes = {"w": (40,)}
    model = DistributedDataParallel(Given(shapes))
    hook = gft.register(
        model, "csc", sparsity=0.75, chunk_elements=10, wire_dtype="fp32"
    )
    given, taken = np.zeros(40), np.zeros(40)
    for step, scale in enumerate([4.0, 4.0, 1024.0, 0.5, 0.5, 8.0]):
        hook.set_loss_scale(scale)
        inputs = random_inputs(shapes, step, ranks.rank)
        given += inputs["w"].double().numpy()
        taken += gradients_of(model, {"w": inputs["w"] * scale})["w"] / scale
    kept = flat(hook.state_dict()["residual"])["w"] / 8.0
    sent = torch.from_numpy(given - kept)
    dist.all_reduce(sent)
    np.testing.assert_allclose(sent.numpy() / ranks.size, taken, atol=1e-5)
    with pytest.raises(ValueError, match="expected a positive number, seen 0"):
        hook.set_loss_scale(0.0)


def test_residual_follows_the_loss_scale() -> None:
    launch(rescale, 2)
