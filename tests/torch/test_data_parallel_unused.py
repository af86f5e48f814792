"""DataParallel: unused parameters get the same as in one process."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gradientflow.torch as gft
from harness import Ranks, launch
from parallel_models import Branches, Given, check_mean, flat, gradients_of, random_inputs
from scripts import run_script

# By step: whether rank r goes left. `None`: its loss uses the stem only.
USAGE = [
    lambda r: True,
    lambda r: True,
    lambda r: r == 0,
    lambda r: False,
    lambda r: None,
    lambda r: None if r == 0 else False,
    lambda r: True,
    lambda r: r != 0,
]


class Parts(Branches):
    """A stem, two branches, a layer that no step uses, an empty parameter."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        super().__init__()
        self.never = torch.nn.Linear(4, 7)
        self.empty = torch.nn.Parameter(torch.zeros(0))

    def forward(self, inputs: torch.Tensor, left: bool | None) -> torch.Tensor:
        if left is not None:
            return super().forward(inputs, left)
        return self.stem(inputs).square().sum()


def share(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn((4, 6), generator=generator)


def like_one_process(ranks: Ranks, settings: dict[str, object]) -> None:
    model, alone = gft.DataParallel(Parts(), **settings), Parts()
    both = [
        (each, torch.optim.AdamW(each.parameters(), 0.05, weight_decay=0.3))
        for each in (model, alone)
    ]
    for step, left in enumerate(USAGE):
        for _, optimizer in both:
            # Zeros count as gradients if they are kept.
            optimizer.zero_grad(set_to_none=step != 6)
        mine = model(share(step, ranks.rank), left(ranks.rank))
        mine.backward()
        losses = [alone(share(step, r), left(r)) for r in range(ranks.size)]
        (sum(losses) / ranks.size).backward()
        torch.testing.assert_close(mine, losses[ranks.rank], rtol=1e-4, atol=1e-5)
        for (name, p), q in zip(
            model.module.named_parameters(), alone.parameters(), strict=True
        ):
            assert (p.grad is None) == (q.grad is None), f"step {step}: {name}"
            if q.grad is not None:
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4)
        for _, optimizer in both:
            optimizer.step()
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4)


# 0.5 % of the chunks is none: all chunks are sent.
SENDS_ALL = {"compression": "csc", "sparsity": 0.005, "wire_dtype": "fp32"}


@pytest.mark.parametrize("settings", [{}, {**SENDS_ALL, "chunk_elements": 7}])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_adamw_trains_as_one_process_does(
    size: int, settings: dict[str, object]
) -> None:
    launch(like_one_process, size, settings, backend="gloo")


def kept_back(ranks: Ranks) -> None:
    """What CSC kept back of a parameter arrives in a later step, even if that
    step does not use the parameter; then, and only then, the parameter has a
    gradient."""
    shapes = {"a": (31,), "b": (5, 7), "c": (40,), "never": (6,)}
    model = gft.DataParallel(
        Given(shapes),
        compression="csc",
        sparsity=0.7,
        chunk_elements=8,
        wire_dtype="fp32",
    )
    given = {name: np.zeros(int(np.prod(s))) for name, s in shapes.items()}
    taken = {name: np.zeros_like(value) for name, value in given.items()}
    seen = {True: 0, False: 0}
    for step in range(40):
        inputs: dict[str, torch.Tensor | None] = dict(
            random_inputs(shapes, step, ranks.rank)
        )
        inputs["never"] = None
        if step % 2:
            inputs["b"] = None  # On all ranks.
        if step % 3 == ranks.rank:
            inputs["c"] = None  # On this rank.
        if step >= 20:
            inputs = {"a": torch.zeros(31)}  # The residual drains.
        got = gradients_of(model, inputs)
        assert "never" not in got and "a" in got
        if inputs.get("b") is None:
            seen["b" in got] += 1
            assert "b" not in got or got["b"].any()
        for name, value in got.items():
            taken[name] += value
        for name, value in inputs.items():
            if value is not None:
                given[name] += value.double().flatten().numpy()
    assert seen[True] and seen[False]
    for name in shapes:
        total = torch.from_numpy(given[name])
        dist.all_reduce(total)
        np.testing.assert_allclose(
            total.numpy() / ranks.size, taken[name], atol=1e-4, err_msg=name
        )


@pytest.mark.parametrize("size", [1, 3])
def test_what_was_kept_back_is_not_lost(size: int) -> None:
    launch(kept_back, size, backend="gloo")


def questions(ranks: Ranks) -> None:
    """On a GPU each question waits until the step has ended there."""
    shapes = {"a": (31,), "b": (5, 7), "c": (40,), "never": (6,)}
    model = gft.DataParallel(
        Given(shapes), compression="csc", sparsity=0.7, chunk_elements=8
    )
    asked = []
    for step, absent in enumerate(((), (), ("b",), ("b", "c"), ())):
        inputs = random_inputs(shapes, step, ranks.rank)
        inputs.update(dict.fromkeys((*absent, "never")))
        model.zero_grad()
        with torch.autograd.profiler.profile() as seen:
            model(inputs).backward()
        names = [event.name for event in seen.function_events]
        assert "aten::mul" in names
        assert not {"aten::item", "aten::_local_scalar_dense"} & set(names)
        asked.append(names.count("aten::stack"))
    # Not for what has never been used, and once for all others.
    assert asked == [0, 0, 1, 1, 0]


def test_only_parameters_that_were_used_before_are_asked_about() -> None:
    launch(questions, 2, backend="gloo")


def test_the_extension_knows_no_call_that_waits_for_the_end_of_a_step() -> None:
    code = pathlib.Path(gft._C.__file__).read_bytes()
    assert b"gf_session_finish_step_async\0" in code
    assert b"gf_session_finish_step\0" not in code


def after_no_sync(ranks: Ranks) -> None:
    """Accumulated gradients count even if the last backward did not reach them."""
    plain, model = Parts(), gft.DataParallel(Parts())
    plain(share(0, ranks.rank), True).backward()
    plain(share(0, ranks.rank), False).backward()
    with model.no_sync():
        model(share(0, ranks.rank), True).backward()
    model(share(0, ranks.rank), False).backward()
    check_mean(ranks, model, plain)


def test_unused_in_the_last_pass_only() -> None:
    launch(after_no_sync, 2, backend="gloo")


def promised(ranks: Ranks) -> None:
    """Without the question, the gradients of unused parameters are zero."""
    model = gft.DataParallel(Parts(), find_unused_parameters=False)
    model(share(0, ranks.rank), True).backward()
    assert all(not p.grad.any() for p in model.module.never.parameters())


def test_zeros_where_nobody_asked() -> None:
    launch(promised, 2)


def frozen(ranks: Ranks) -> None:
    model, alone = gft.DataParallel(Parts()), Parts()
    both = [
        (each, torch.optim.AdamW(each.parameters(), 0.05, weight_decay=0.3))
        for each in (model, alone)
    ]
    for step in range(8):
        for each, optimizer in both:
            module = each.module if each is model else each
            # In step 2 with a gradient from before, in step 4 without one.
            if step != 2:
                optimizer.zero_grad()
            module.stem.weight.requires_grad_(step not in (2, 4, 5))
        model(share(step, ranks.rank), True).backward()
        losses = [alone(share(step, r), True) for r in range(ranks.size)]
        (sum(losses) / ranks.size).backward()
        for _, optimizer in both:
            optimizer.step()
        p, q = model.module.stem.weight, alone.stem.weight
        assert (p.grad is None) == (q.grad is None) == (step in (4, 5)), step
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4)


def test_frozen_after_wrapping() -> None:
    launch(frozen, 2)


def thawed(ranks: Ranks) -> None:
    module = Parts()
    module.left.bias.requires_grad_(False)
    model = gft.DataParallel(module)
    model(share(0, ranks.rank), True).backward()
    module.left.bias.requires_grad_(True)
    with pytest.raises(ValueError, match="'left.bias' did not require gradients"):
        model(share(0, ranks.rank), True)


def test_refuses_what_was_frozen_before() -> None:
    launch(thawed, 1)


def sgd(ranks: Ranks) -> None:
    """Like torch's, our optimisers leave parameters without a gradient alone."""
    model, alone = gft.DataParallel(Parts()), Parts()
    ours = gft.SGD(model, 0.02, momentum=0.9, weight_decay=0.3)
    theirs = torch.optim.SGD(alone.parameters(), 0.02, 0.9, weight_decay=0.3)
    for step, left in enumerate(USAGE):
        ours.zero_grad()
        theirs.zero_grad()
        model(share(step, ranks.rank), left(ranks.rank)).backward()
        losses = [alone(share(step, r), left(r)) for r in range(ranks.size)]
        (sum(losses) / ranks.size).backward()
        ours.step()
        theirs.step()
        for (name, p), q in zip(
            model.module.named_parameters(), alone.parameters(), strict=True
        ):
            torch.testing.assert_close(
                p, q, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
            )
    before = flat(dict(Parts().named_parameters()))
    after = flat(dict(model.module.named_parameters()))
    assert np.array_equal(before["never.weight"], after["never.weight"])


@pytest.mark.parametrize("size", [1, 2])
def test_sgd_leaves_alone_what_has_no_gradient(size: int) -> None:
    launch(sgd, size)


def test_a_session_closes_while_backward_waits() -> None:
    code = """
        import datetime, os, threading, time
        import torch, torch.distributed as dist
        import gradientflow.torch as gft

        rank = int(os.environ["RANK"])
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, rank == 0)
        dist.init_process_group("gradientflow", store=store, rank=rank, world_size=2)
        model = gft.DataParallel(torch.nn.Linear(8, 3))

        def step():
            try:
                model(torch.ones(4, 8)).sum().backward()
            except dist.DistBackendError:
                print("failed", flush=True)

        if rank == 0:
            thread = threading.Thread(target=step)
            thread.start()
            time.sleep(0.7)
            gft._C.close_all()
            thread.join()
        # Rank 0 has the store, and ends last.
        store.set(f"over {rank}", "1")
        store.wait(["over 0"])
        store.wait(["over 1"])
        if rank == 0:
            time.sleep(0.3)
    """
    ended = run_script(code, 2)
    assert [one.exit_code for one in ended] == [0, 0], ended
    assert ended[0].output == "failed\n"
