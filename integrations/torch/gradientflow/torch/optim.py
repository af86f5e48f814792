"""Optimisers that know which chunks of the gradients were sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gradientflow.torch.data_parallel import DataParallel

__all__ = ["LARS", "SGD"]


class _ChunkAware(torch.optim.Optimizer):
    """Updates the float32 weights of a :class:`DataParallel` model in C++.

    With CSC only the weights of chunks that were sent change; the momentum
    lives in the session. A step in which any rank had an inf or NaN is skipped
    on all ranks. Parameters whose gradient is ``None``, and parameters in no
    group, stay as they are.
    """

    chunk_aware = True  # Read by guard.py.

    def __init__(
        self,
        model: DataParallel,
        groups: Iterable[dict[str, Any]] | None,
        defaults: dict[str, Any],
    ) -> None:
        if not isinstance(model, DataParallel):
            raise TypeError(
                "model: expected a gradientflow.torch.DataParallel, seen"
                f" {type(model).__name__}"
            )
        self._model = model
        self._names = {id(p): n for n, p in model.module.named_parameters()}
        self._places = {id(parameter): i for i, parameter in enumerate(model._sent)}
        self._group_of = [-1] * len(self._places)  # By place.
        self._check(defaults)
        if groups is None:
            groups = [{"params": list(model._sent)}]
        momentum = defaults["momentum"]
        if model._momentum is not None:
            # This tells schedules, such as OneCycleLR, not to change it.
            del defaults["momentum"]
        super().__init__([{"momentum": momentum, **g} for g in groups], defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Like torch's: adds parameters of the model that are in no group yet,
        with the settings that differ from the defaults."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            group.setdefault("momentum", self._model._momentum)
            self._check(group)
            places = [self._place(parameter) for parameter in group["params"]]
        except BaseException:
            del self.param_groups[-1]
            raise
        for place in places:
            self._group_of[place] = len(self.param_groups) - 1

    def _place(self, parameter: torch.nn.Parameter) -> int:
        name = self._names.get(id(parameter))
        if name is None:
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} is none of the"
                " model's: use one of torch's optimisers for it"
            )
        if parameter.dtype != torch.float32:
            raise ValueError(
                f"{name!r} is {parameter.dtype}, expected torch.float32:"
                " use an optimiser of torch's"
            )
        if id(parameter) not in self._places:
            raise ValueError(
                f"{name!r} did not require gradients when DataParallel was made"
            )
        return self._places[id(parameter)]

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Updates the weights from the last backward pass.

        ``lr`` and the other settings of the groups are read in each step, so
        that schedulers work.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._check(group)
        self._model._core.optimizer_step(
            [self._settings(group) for group in self.param_groups], self._group_of
        )
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Includes this rank's momentum and residual: each rank saves its own."""
        state = super().state_dict()
        state["session"] = self._model.comm_state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads this rank's state; all ranks call it, as for
        :meth:`DataParallel.load_comm_state_dict`, whose state is part of this
        one. Either all ranks take over their states, or none changes."""
        self._model._restore(lambda: self._session_of(state_dict))
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "session"})

    def _session_of(self, state: dict[str, Any]) -> torch.Tensor:
        """Returns the session's part of a :meth:`state_dict`, or raises
        ValueError if torch would refuse the rest."""
        for name in ("state", "param_groups", "session"):
            if name not in state:
                raise ValueError(f"the optimiser's state has no {name!r}")
        saved = state["param_groups"]
        counts = [len(group["params"]) for group in saved]
        expected = [len(group["params"]) for group in self.param_groups]
        if counts != expected:
            raise ValueError(
                f"the optimiser's state has groups of {counts} parameters, expected"
                f" {expected}"
            )
        for group in saved:
            for name in (*self.defaults, "momentum"):
                if name not in group:
                    raise ValueError(
                        f"the optimiser's state has a group without {name!r}"
                    )
            self._check(group)
        return self._model._session_of(state["session"])

    def _settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Returns the settings in the form that _C.DataParallel.optimizer_step() takes."""
        raise NotImplementedError

    def _check(self, group: dict[str, Any]) -> None:
        kept = self._model._momentum
        # The session's momentum is a float32.
        if kept is not None and not math.isclose(group["momentum"], kept, rel_tol=1e-6):
            raise ValueError(
                f"momentum={group['momentum']} differs from the model's, with"
                f" which its residual decays: {kept}"
            )


class SGD(_ChunkAware):
    """Momentum SGD: u = momentum * u + lr * (g + weight_decay * w); w -= u.

    The learning rate is inside of u, as in the paper, while torch's SGD
    multiplies u by it. Both give the same weights as long as the rate does not
    change.

    Args:
        groups: parameters with settings of their own, in the form that
            torch.optim takes: ``[{"params": ..., "weight_decay": 0},
            {"params": ...}]``. ``None``: one group of all parameters.
    """

    def __init__(
        self,
        model: DataParallel,
        lr: float,
        momentum: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        groups: Iterable[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            model,
            groups,
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            },
        )

    def _settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        rate, momentum = float(group["lr"]), group["momentum"]
        decay, nesterov = group["weight_decay"], group["nesterov"]
        return (False, rate, momentum, decay, nesterov, 0.0, 0.0)


class LARS(_ChunkAware):
    """SGD with a rate per layer: eta * |w| / (|g| + weight_decay * |w| + eps).

    Biases and other parameters of at most one dimension keep ``lr``. With CSC
    |w| is taken over the whole layer, and |g| over what was sent. ``groups`` is
    the same as for :class:`SGD`.
    """

    def __init__(
        self,
        model: DataParallel,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0,
        eta: float = 0.001,
        eps: float = 1e-8,
        *,
        groups: Iterable[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(
            model,
            groups,
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "eta": eta,
                "eps": eps,
            },
        )

    def _settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        rate, momentum = float(group["lr"]), group["momentum"]
        eta, eps = group["eta"], group["eps"]
        return (True, rate, momentum, group["weight_decay"], False, eta, eps)
