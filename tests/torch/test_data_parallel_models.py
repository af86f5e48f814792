"""DataParallel: which models it accepts, and which ranks train them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.optim.swa_utils import AveragedModel

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import (
    SPARSITY_1,
    Given,
    batch,
    distance,
    flat,
    gradients_of,
    net,
    random_inputs,
)


def memory_formats(ranks: Ranks) -> None:
    def model() -> torch.nn.Module:
        torch.manual_seed(1)
        conv = torch.nn.Conv2d(3, 8, 3)
        return conv.to(memory_format=torch.channels_last)

    alone, together = model(), gft.DataParallel(model())
    for step in range(3):
        shares = [
            torch.randn(
                (2, 3, 5, 5), generator=torch.Generator().manual_seed(9 * step + r)
            )
            for r in range(ranks.size)
        ]
        alone.zero_grad()
        (sum(alone(x).square().sum() for x in shares) / ranks.size).backward()
        together.zero_grad(set_to_none=step % 2 == 0)
        together(shares[ranks.rank]).square().sum().backward()
        grad = together.module.weight.grad
        assert grad.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(grad, alone.weight.grad, atol=1e-4, rtol=1e-4)


def test_any_memory_format() -> None:
    launch(memory_formats, 2)


def several_models(ranks: Ranks) -> None:
    shapes = {"a": (20,), "b": (7,)}
    models = [gft.DataParallel(Given(shapes)) for _ in range(3)]
    for step in range(3):
        inputs = [random_inputs(shapes, step, r) for r in range(ranks.size)]
        # Two models in one backward pass, then the third.
        for model in models:
            model.zero_grad()
        (models[2](inputs[ranks.rank]) + models[0](inputs[ranks.rank])).backward()
        models[1](inputs[ranks.rank]).backward()
        for model in models:
            for name, p in model.module.named_parameters():
                mean = sum(flat(each)[name] for each in inputs) / ranks.size
                np.testing.assert_allclose(p.grad.numpy(), mean, atol=1e-5)
    models.pop(0).close()
    gradients_of(models[0], inputs[ranks.rank])


def test_several_models() -> None:
    launch(several_models, 2, backend="gloo")
    launch(several_models, 3)


def part_of_the_ranks(ranks: Ranks) -> None:
    group = dist.new_group([2, 0])
    if ranks.rank == 1:
        return
    model = gft.DataParallel(net(ranks.rank), process_group=group)
    assert model.size == 2
    inputs = [batch(0, r) for r in (0, 2)]
    x, y = inputs[ranks.rank // 2]
    torch.nn.functional.mse_loss(model(x), y).backward()
    alone = net(0)
    x, y = (torch.cat(parts) for parts in zip(*inputs))
    torch.nn.functional.mse_loss(alone(x), y).backward()
    # Rank 0 of the group has the weights.
    expected = distance(model.module, alone)
    for p, q in zip(model.parameters(), alone.parameters()):
        if expected == 0:
            torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-5)


def test_part_of_the_ranks() -> None:
    launch(part_of_the_ranks, 3, backend="gloo")


def names_and_copies(ranks: Ranks) -> None:
    model = gft.DataParallel(net())
    plain = net()
    assert list(model.state_dict()) == [f"module.{n}" for n in plain.state_dict()]
    ddp_like = {f"module.{n}": v + 1 for n, v in plain.state_dict().items()}
    model.load_state_dict(ddp_like)
    assert torch.equal(model.module[0].bias, plain[0].bias + 1)
    for copying in (copy.deepcopy, pickle.dumps, AveragedModel):
        with pytest.raises(TypeError, match="AveragedModel.model.module"):
            copying(model)
    # As AveragedModel does it.
    average = AveragedModel(model.module)
    before = copy.deepcopy(model.module)
    model(batch(0, 0)[0]).sum().backward()
    with torch.no_grad():
        model.module[0].bias += 2
    average.update_parameters(model.module)
    average.update_parameters(before)
    assert torch.equal(average.module[0].bias, model.module[0].bias - 1)
    for joining in (lambda: Join([model]), model.join):
        with pytest.raises(NotImplementedError, match="same number of steps.*join"):
            joining()


def test_is_named_as_ddp_does_and_not_copied() -> None:
    launch(names_and_copies, 1)


def buffers(ranks: Ranks) -> None:
    torch.manual_seed(ranks.rank)
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))
    module.register_buffer("mask", torch.tensor([ranks.rank == 0, True]))
    module.register_buffer("wide", torch.full((300_001,), float(ranks.rank)))
    model = gft.DataParallel(module)
    assert module.mask.tolist() == [True, True]
    assert module.wide.eq(0).all()
    for step in range(3):
        x = torch.randn((6, 5), generator=torch.Generator().manual_seed(ranks.rank))
        before = module[1].running_mean.clone()
        dist.broadcast(before, 0)
        model(x).sum().backward()
        batch_mean = module[0](x).mean(0)
        expected = 0.9 * before + 0.1 * batch_mean
        torch.testing.assert_close(module[1].running_mean, expected.detach())
        assert module[1].num_batches_tracked == step + 1
    assert ranks.rank == 0 or not torch.equal(before, module[1].running_mean)
    # Neither in evaluation, nor without gradients.
    model.eval()
    module.wide.fill_(ranks.rank)
    model(x)
    model.train()
    with torch.no_grad():
        model(x)
    assert module.wide.eq(ranks.rank).all()


def test_buffers_are_those_of_rank_0() -> None:
    launch(buffers, 3)


CSC_ONLY = {
    "sparsity": 0.9,
    "chunk_elements": 100,
    "warmup_steps": 5,
    "residual": "momentum",
    "momentum": 0.9,
}


def refusals(ranks: Ranks) -> None:
    with pytest.raises(ValueError, match="expected parameters that require"):
        gft.DataParallel(torch.nn.ReLU())
    with pytest.raises(ValueError, match="contradicts compression='fp16'"):
        gft.DataParallel(net(), compression="fp16", wire_dtype="bf16")
    with pytest.raises(ValueError, match="expected 'fp16', 'bf16', 'csc' or None"):
        gft.DataParallel(net(), compression="zip")
    with pytest.raises(ValueError, match="residual: expected 'plain' or"):
        gft.DataParallel(net(), compression="csc", residual="none")
    with pytest.raises(ValueError, match=SPARSITY_1):
        gft.DataParallel(net(), compression="csc", sparsity=1.0)
    with pytest.raises(ValueError, match=SPARSITY_1):
        gft.DataParallel(net(), options={"sparsity": "1.0"})
    with pytest.raises(ValueError, match="did you mean"):
        gft.DataParallel(net(), options={"bucket_byte": "1"})
    with pytest.raises(ValueError, match="accumulate=on, but DataParallel"):
        gft.DataParallel(net(), options={"accumulate": "on"})
    with pytest.raises(ValueError, match="zero_kept=off, but then each rank"):
        gft.DataParallel(net(), options={"zero_kept": "off"})
    for options, match in (
        ({"pool_dtype": "float16"}, "pool_dtype=float16, but .* are kept in float32"),
        ({"GRADIENTFLOW_POOL_DTYPE": "bfloat16"}, "module.half"),
        ({"device": "cuda:0"}, "device=cuda:0, but the parameters are on cpu"),
    ):
        with pytest.raises(ValueError, match=match):
            gft.DataParallel(net(), options=options)
    with pytest.raises(ValueError, match="float16 parameters|Half .* in float16"):
        gft.DataParallel(net().half(), options={"pool_dtype": "float32"})
    for name, value in CSC_ONLY.items():
        for compression in (None, "fp16"):
            with pytest.raises(ValueError, match=f"{name}={value!r} is for compress"):
                gft.DataParallel(net(), compression=compression, **{name: value})
    with pytest.raises(ValueError, match="momentum=0.5 is for residual='momentum'"):
        gft.DataParallel(net(), compression="csc", momentum=0.5)
    with pytest.raises(ValueError, match="expected more than 0, as residual is"):
        gft.DataParallel(net(), compression="csc", residual="momentum", momentum=0)
    with pytest.raises(ValueError, match="expected a real type"):
        gft.DataParallel(Given({"z": (3,)}, {"z": torch.complex64}))
    for types in ({"w": torch.float64}, {"v": torch.float32, "w": torch.float64}):
        with pytest.raises(TypeError, match="'w' is torch.float64, .*float32, float16, bfloat16"):
            gft.DataParallel(Given({name: (3,) for name in types}, types))
    with pytest.raises(ValueError, match="no shape yet"):
        gft.DataParallel(torch.nn.LazyLinear(3))
    model = gft.DataParallel(torch.nn.Embedding(10, 3, sparse=True))
    with pytest.raises(ValueError, match="expected a dense one.*sparse=True"):
        model(torch.tensor([1])).sum().backward()
    model = gft.DataParallel(net())
    model.close()
    model.close()
    with pytest.raises(RuntimeError, match="is closed"):
        model(batch(0, 0)[0])


def test_refuses_what_cannot_be() -> None:
    launch(refusals, 1)


def conv(channels_last: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 1))
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model


class Shaped(torch.nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(shape))


def laid_out_otherwise(ranks: Ranks, what: str) -> None:
    odd = ranks.rank == 1
    if what == "shape":
        module, match = Shaped(*((3, 2) if odd else (2, 3))), r"w \[(2x3|3x2)\]"
    else:
        module, match = conv(odd), r"0.weight \[8x3x3x3 in order 0,2,3,1\]"
    with pytest.raises(dist.DistBackendError, match=match):
        gft.DataParallel(module)


@pytest.mark.parametrize("what", ["shape", "format"])
def test_ranks_agree_on_how_parameters_lie_in_memory(what: str) -> None:
    launch(laid_out_otherwise, 2, what)


def other_format(ranks: Ranks) -> None:
    """A residual and momentum have the order of the pool."""

    def make(channels_last: bool) -> tuple[gft.DataParallel, gft.SGD]:
        model = gft.DataParallel(conv(channels_last))
        return model, gft.SGD(model, 0.1, momentum=0.9)

    def step(run: tuple[gft.DataParallel, gft.SGD]) -> None:
        run[0](torch.ones(2, 3, 8, 8)).square().mean().backward()
        run[1].step()

    states = {}
    for channels_last in (False, True):
        saving = make(channels_last)
        step(saving)
        states[channels_last] = saving[1].state_dict()
    for channels_last, state in states.items():
        with pytest.raises(dist.DistBackendError, match="0.weight .* in order 0,2,3,1"):
            make(not channels_last)[1].load_state_dict(state)
        loading = make(channels_last)
        loading[1].load_state_dict(state)
        step(loading)


def test_refuses_a_state_of_another_memory_format() -> None:
    launch(other_format, 2)
