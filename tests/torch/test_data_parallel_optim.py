"""SGD and LARS of this package, compared with float64."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import (
    Given,
    batch,
    bits_of,
    distance,
    flat,
    net,
    random_inputs,
    train_alone,
)

SHAPES = {"a": (7, 11), "b": (130,), "c": (3, 5, 7), "d": (1,), "e": (0,), "f": (41, 3)}


def train(ranks: Ranks, steps: int) -> tuple[list[bytes], float]:
    model = gft.DataParallel(net(ranks.rank))
    optimizer = gft.SGD(model, 0.05, 0.9)
    for step in range(steps):
        inputs, targets = batch(step, ranks.rank)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return bits_of(model), distance(model, train_alone(ranks.size, steps))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_sgd_trains_as_torch_does(size: int) -> None:
    results = launch(train, size, 12)
    assert all(bits == results[0][0] for bits, _ in results)
    assert all(apart < 1e-5 for _, apart in results)


def like_torch(ranks: Ranks, nesterov: bool) -> None:
    ours = gft.DataParallel(net())
    theirs = net()
    settings = {"momentum": 0.8, "weight_decay": 0.01, "nesterov": nesterov}
    pair = (
        (ours, gft.SGD(ours, 0.03, **settings)),
        (theirs, torch.optim.SGD(theirs.parameters(), 0.03, **settings)),
    )
    for step in range(8):
        inputs, targets = batch(step, 0)
        for model, optimizer in pair:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    assert distance(ours, theirs) < 1e-6


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_has_torchs_terms(nesterov: bool) -> None:
    launch(like_torch, 1, nesterov)


def pool_places(counts: list[int]) -> tuple[list[slice], int]:
    """Returns where float32 tensors of these sizes lie in a pool, in its order,
    and how many elements it has: each tensor begins at a multiple of 128 bytes
    if that takes less than 1 % more elements, else of 16."""
    for align in (32, 4):
        places, end = [], 0
        for count in counts:
            begin = -(-end // align) * align if count else end
            end = begin + count
            places.append(slice(begin, end))
        padding = end - sum(counts)
        if padding == 0 or padding * 100 < sum(counts):
            break
    return places, end


class MomentumOracle:
    """The paper's Algorithm 1 on all ranks at once, in float64.

    The pool holds the tensors last to first, and zeros between them.
    """

    def __init__(
        self, weights: dict[str, np.ndarray], size: int, sparsity: float, chunk: int
    ) -> None:
        self.names = list(reversed(weights))
        self.places, self.elements = pool_places([weights[n].size for n in self.names])
        self.weights = self.pool_of(weights)
        self.history = np.zeros((size, self.weights.size))
        self.momentum = np.zeros_like(self.weights)
        self.edges = np.arange(0, self.weights.size, chunk)
        self.keep = max(1, int(np.floor((1 - sparsity) * self.edges.size + 0.5)))
        self.sent = np.ones(self.edges.size, bool)

    def pool_of(self, tensors: dict[str, np.ndarray]) -> np.ndarray:
        pool = np.zeros(self.elements)
        for name, place in zip(self.names, self.places):
            pool[place] = tensors[name]
        return pool

    def step(
        self, gradients: list[dict[str, np.ndarray]], lr: float, m: float, decay: float
    ) -> None:
        pools = [self.pool_of(each) for each in gradients]
        sums = np.stack(pools) + self.history
        width = np.diff(np.append(self.edges, self.weights.size))
        sent = np.repeat(self.sent, width)
        mean = sums.mean(0)
        self.history = np.where(sent, 0, m * sums)
        scores = np.where(
            self.sent,
            len(pools) * np.add.reduceat(np.abs(mean), self.edges),
            np.add.reduceat(np.abs(sums), self.edges, axis=1).sum(0),
        )
        full = mean + decay * self.weights
        moved = m * self.momentum + lr * full
        self.momentum = np.where(sent, moved, self.momentum)
        self.weights = np.where(sent, self.weights - moved, self.weights)
        best = np.argsort(-scores, kind="stable")[: self.keep]
        self.sent = np.isin(np.arange(self.edges.size), best)

    def by_name(self) -> dict[str, np.ndarray]:
        return {n: self.weights[place] for n, place in zip(self.names, self.places)}


def follow_momentum(ranks: Ranks, sparsity: float) -> None:
    module = Given(SHAPES)
    start = random_inputs(SHAPES, 99, 0)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(start[name])
    model = gft.DataParallel(
        module,
        compression="csc",
        sparsity=sparsity,
        chunk_elements=20,
        wire_dtype="fp32",
        residual="momentum",
        momentum=0.8,
    )
    optimizer = gft.SGD(model, 0.1, momentum=0.8, weight_decay=0.02)
    oracle = MomentumOracle(flat(start), ranks.size, sparsity, 20)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(12):
        inputs = [random_inputs(SHAPES, step, r) for r in range(ranks.size)]
        optimizer.zero_grad()
        model(inputs[ranks.rank]).backward()
        lr = schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
        oracle.step([flat(each) for each in inputs], lr, 0.8, 0.02)
        for name, expected in oracle.by_name().items():
            got = flat(dict(module.named_parameters()))[name]
            np.testing.assert_allclose(
                got, expected, atol=2e-5, err_msg=f"{step} {name}"
            )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sgd_with_momentum_correction(size: int) -> None:
    launch(follow_momentum, size, 0.7)


def lars(ranks: Ranks) -> None:
    module = Given(SHAPES)
    start = random_inputs(SHAPES, 99, 0)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(start[name])
    model = gft.DataParallel(module)
    optimizer = gft.LARS(
        model, 0.5, momentum=0.9, weight_decay=0.01, eta=0.02, eps=1e-6
    )
    weights = flat(start)
    momentum = {name: np.zeros_like(w) for name, w in weights.items()}
    for step in range(6):
        inputs = [random_inputs(SHAPES, step, r) for r in range(ranks.size)]
        optimizer.zero_grad()
        model(inputs[ranks.rank]).backward()
        optimizer.step()
        for name, w in weights.items():
            g = sum(flat(each)[name] for each in inputs) / ranks.size
            rate = 0.5
            norms = np.linalg.norm(w), np.linalg.norm(g)
            # Biases and similar parameters keep the rate.
            if len(SHAPES[name]) > 1 and min(norms) > 0:
                rate *= 0.02 * norms[0] / (norms[1] + 0.01 * norms[0] + 1e-6)
            momentum[name] = 0.9 * momentum[name] + rate * (g + 0.01 * w)
            weights[name] = w - momentum[name]
    for name, got in flat(dict(module.named_parameters())).items():
        np.testing.assert_allclose(got, weights[name], atol=2e-5, err_msg=name)


@pytest.mark.parametrize("size", [1, 3])
def test_lars(size: int) -> None:
    launch(lars, size)


def stale_graph(ranks: Ranks) -> None:
    model = gft.DataParallel(net())
    optimizer = gft.SGD(model, 0.1)
    loss = model(batch(0, 0)[0]).square().sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autograd_knows_that_weights_changed() -> None:
    launch(stale_graph, 1)


def users_gradients(ranks: Ranks) -> None:
    """The optimiser uses what the user leaves in .grad."""
    ours, plain = gft.DataParallel(net()), net()
    mine = gft.SGD(ours, 0.1, momentum=0.9)
    theirs = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        for each in (ours, plain):
            each.zero_grad()
            inputs = torch.cat([batch(step, r)[0] for r in range(ranks.size)])
            each(inputs).square().mean().backward()
            first, second, *_, last = each.parameters()
            first.grad = first.grad * 2
            second.grad.mul_(3)
            if step == 2:
                last.grad = None
        mine.step()
        theirs.step()
        for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("size", [1, 2])
def test_takes_what_the_user_did_to_gradients(size: int) -> None:
    launch(users_gradients, size)


def formats(ranks: Ranks) -> None:
    conv = torch.nn.Conv2d(3, 8, 3)
    model = gft.DataParallel(torch.nn.Sequential(conv, torch.nn.Conv2d(8, 1, 1)))
    optimizer = gft.SGD(model, 0.1)
    model.to(memory_format=torch.channels_last)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    before = conv.weight.detach().clone()
    with pytest.raises(ValueError, match=r"'0.weight' has strides.*memory format"):
        optimizer.step()
    assert torch.equal(conv.weight, before)


def test_refuses_a_memory_format_that_changed() -> None:
    launch(formats, 1)


def refusals(ranks: Ranks) -> None:
    model = gft.DataParallel(net())
    with pytest.raises(TypeError, match="expected a gradientflow.torch.DataParallel"):
        gft.SGD(net(), 0.1)
    with pytest.raises(ValueError, match="'0.weight' is torch.float16"):
        gft.SGD(gft.DataParallel(net().half()), 0.1)
    optimizer = gft.SGD(model, 0.1)
    with pytest.raises(ValueError, match="of shape .1,. is none of the model's"):
        optimizer.add_param_group({"params": [torch.zeros(1)]})
    with pytest.raises(ValueError, match="some parameters appear in more than one"):
        optimizer.add_param_group({"params": model.module[0].bias})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(torch.distributed.DistBackendError, match="after FinishStep"):
        optimizer.step()
    optimizer.param_groups[0]["lr"] = -1.0
    model(batch(0, 0)[0]).sum().backward()
    with pytest.raises(
        torch.distributed.DistBackendError, match="lr: expected a finite"
    ):
        optimizer.step()
    sparse = gft.DataParallel(
        net(), compression="csc", residual="momentum", momentum=0.9
    )
    for groups in (None, [{"params": sparse.module[0].bias, "momentum": 0.5}]):
        momentum = 0.9 if groups else 0.5
        with pytest.raises(ValueError, match="momentum=0.5 differs from the model's"):
            gft.SGD(sparse, 0.1, momentum=momentum, groups=groups)
    ours = gft.SGD(sparse, 0.1, momentum=0.9)
    with pytest.raises(ValueError, match="cycle_momentum"):
        torch.optim.lr_scheduler.OneCycleLR(ours, 0.1, total_steps=10)
    torch.optim.lr_scheduler.OneCycleLR(
        ours, 0.1, total_steps=10, cycle_momentum=False
    )


def others(ranks: Ranks) -> None:
    """Optimisers of torch's are refused, since they would lose gradients."""
    # However the residual was requested.
    settings = {"sparsity": "0.85", "residual": "momentum", "momentum": "0.9"}
    model, plain = gft.DataParallel(net(), options=settings), gft.DataParallel(net())
    before = bits_of(model)
    for each in (model, plain):
        each(batch(0, 0)[0]).sum().backward()
        adam = torch.optim.AdamW(each.parameters())
        lost = pytest.raises(ValueError, match="AdamW would lose what residual='mome")
        with lost if each is model else contextlib.nullcontext():
            adam.step()
        assert (bits_of(each) == before) == (each is model)
    gft.SGD(model, 0.1, momentum=0.9).step()
    assert bits_of(model) != before
    model.close()
    torch.optim.AdamW(model.parameters()).step()


def test_refuses_torchs_optimisers_where_they_lose_gradients() -> None:
    launch(others, 1)


def test_refuses_what_cannot_be() -> None:
    launch(refusals, 1)


def grouped(ranks: Ranks) -> None:
    """Groups with settings of their own, one added later, one left out."""
    ours, theirs = gft.DataParallel(net()), net()

    def parts(model: torch.nn.Module) -> list[dict]:
        decayed = [p for p in model.parameters() if p.dim() > 1]
        return [
            {"params": decayed[:2], "weight_decay": 0.1},
            {"params": [model[0].bias], "lr": 0.2, "nesterov": True},
        ]

    mine = gft.SGD(ours, 0.05, 0.9, groups=parts(ours.module))
    other = torch.optim.SGD(parts(theirs), 0.05, 0.9)
    schedule = [torch.optim.lr_scheduler.StepLR(o, 100) for o in (mine, other)]
    untouched = ours.module[4].weight.detach().clone()
    for step in range(8):
        if step == 3:
            mine.add_param_group({"params": ours.module[2].bias, "momentum": 0.5})
            other.add_param_group({"params": theirs[2].bias, "momentum": 0.5})
        for model, optimizer in ((ours, mine), (theirs, other)):
            model.zero_grad()
            inputs = torch.cat([batch(step, r)[0] for r in range(ranks.size)])
            model(inputs).square().mean().backward()
            optimizer.step()
        for each in schedule:
            each.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours.module[4].weight, untouched)
    assert len(mine.param_groups) == 3
    state = copy.deepcopy(mine.state_dict())
    mine.param_groups[1]["lr"] = 7.0
    mine.load_state_dict(state)
    assert mine.param_groups[1]["lr"] == 0.2
    # LARS gives the same with two groups as with one.
    both = []
    for groups in (1, 2):
        model = gft.DataParallel(net())
        halves = [{"params": list(model.parameters())[i::groups]} for i in range(groups)]
        lars = gft.LARS(model, 0.5, eta=0.1, groups=halves)
        for step in range(3):
            model.zero_grad()
            model(batch(step, ranks.rank)[0]).square().mean().backward()
            lars.step()
        both.append(bits_of(model))
    assert both[0] == both[1]


@pytest.mark.parametrize("size", [1, 2])
def test_groups_of_parameters(size: int) -> None:
    launch(grouped, size)


class Run:
    """Sparse training, with all the state that a checkpoint has."""

    def __init__(self, own: bool) -> None:
        self.model = gft.DataParallel(
            net(),
            compression="csc",
            sparsity=0.7,
            chunk_elements=17,
            warmup_steps=4,
            residual="momentum" if own else "plain",
            # Settings that are chosen by measurement would cut elsewhere.
            options={"bucket_bytes": "500", "algorithm": "ring"},
        )
        if own:
            self.optimizer = gft.SGD(self.model, 0.05, 0.9)
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)
        self.own = own

    def train(self, rank: int, first: int, last: int) -> None:
        for step in range(first, last):
            inputs, targets = batch(step, rank)
            self.optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.model(inputs), targets).backward()
            self.optimizer.step()

    def state(self) -> dict:
        state = {"model": self.model.state_dict(), "opt": self.optimizer.state_dict()}
        if not self.own:
            state["comm"] = self.model.comm_state_dict()
        return copy.deepcopy(state)

    def load(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["opt"])
        if not self.own:
            self.model.load_comm_state_dict(state["comm"])


def go(ranks: Ranks, folder: str, first: int, last: int, own: bool) -> list[bytes]:
    run = Run(own)
    path = f"{folder}/{ranks.rank}"
    if first > 0:
        run.load(torch.load(path))
    run.train(ranks.rank, first, last)
    torch.save(run.state(), path)
    return bits_of(run.model)


@pytest.mark.parametrize("own", [False, True])
def test_goes_on_in_new_processes_bit_for_bit(tmp_path: object, own: bool) -> None:
    through = launch(go, 3, str(tmp_path), 0, 12, own)
    for stop in (1, 6):
        launch(go, 3, str(tmp_path), 0, stop, own)
        assert launch(go, 3, str(tmp_path), stop, 12, own) == through


@contextlib.contextmanager
def refused_on_one(ranks: Ranks, match: str) -> Iterator[None]:
    """Rank 1 finds its own state damaged, and the others learn of it."""
    bad = ranks.rank == 1
    error = ValueError if bad else torch.distributed.DistBackendError
    with pytest.raises(error, match=match if bad else "rank 1 is refused"):
        yield


def other_states(ranks: Ranks) -> None:
    run = Run(True)
    run.train(ranks.rank, 0, 3)
    state = run.model.comm_state_dict()
    for change, match in (
        ({"version": 9}, "version 9, expected 1"),
        ({"size": 17}, "one of 17 ranks, expected"),
        ({"session": None}, "no tensor 'session'"),
        ({"session": state["session"].float()}, "expected uint8 on the CPU"),
    ):
        with refused_on_one(ranks, match):
            bad = {**state, **change} if ranks.rank == 1 else state
            run.model.load_comm_state_dict(bad)
    damaged = state["session"].clone()
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(torch.distributed.DistBackendError, match="damaged|checksum"):
        run.model.load_comm_state_dict({**state, "session": damaged})
    other = gft.DataParallel(torch.nn.Linear(3, 2))
    with pytest.raises(torch.distributed.DistBackendError, match="expected|differ"):
        other.load_comm_state_dict(state)
    run.model.load_comm_state_dict(state)


def test_refuses_other_states() -> None:
    launch(other_states, 2)


def all_or_none(ranks: Ranks) -> None:
    """If one rank's state is refused, all keep their learning rate and train
    on."""
    run = Run(True)
    run.train(ranks.rank, 0, 2)
    early = copy.deepcopy(run.optimizer.state_dict())
    run.optimizer.param_groups[0]["lr"] = 0.01
    run.train(ranks.rank, 2, 4)
    late = copy.deepcopy(run.optimizer.state_dict())
    run.optimizer.param_groups[0]["lr"] = 0.02
    with pytest.raises(torch.distributed.DistBackendError, match="of step 2, rank 0's"):
        run.optimizer.load_state_dict(early if ranks.rank == 1 else late)
    short = [{**late["param_groups"][0], "params": [0]}]
    without = {k: v for k, v in late.items() if k != "session"}
    for bad, match in (
        ({**late, "param_groups": short}, "groups of .1. parameters, expected .6."),
        (without, "no 'session'"),
    ):
        with refused_on_one(ranks, match):
            run.optimizer.load_state_dict(bad if ranks.rank == 1 else late)
    assert run.optimizer.param_groups[0]["lr"] == 0.02
    run.train(ranks.rank, 4, 6)
    run.optimizer.load_state_dict(late)
    assert run.optimizer.param_groups[0]["lr"] == 0.01


def test_all_ranks_load_their_state_or_none() -> None:
    launch(all_or_none, 3)
