"""Optimisers that know which chunks of the gradients were sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradientflow.torch.data_parallel import DataParallel

__all__ = ["LARS", "SGD"]


class _ChunkAware(torch.optim.Optimizer):
    """Updates the float32 weights of a :class:`DataParallel` model in C++.

    With CSC only what was sent changes; momentum lives in the session. A step
    in which a rank had an inf or NaN is skipped, on all ranks.
    """

    chunk_aware = True  # For guard.py.

    def __init__(self, model: DataParallel, defaults: dict[str, Any]) -> None:
        if not isinstance(model, DataParallel):
            raise TypeError(
                "model: expected a gradientflow.torch.DataParallel, seen"
                f" {type(model).__name__}"
            )
        named = [(n, p) for n, p in model.module.named_parameters() if p.requires_grad]
        for name, parameter in named:
            if parameter.dtype != torch.float32:
                raise ValueError(
                    f"{name!r} is {parameter.dtype}, expected torch.float32:"
                    " use an optimiser of torch's"
                )
        self._model = model
        self._check(defaults)
        group = {"params": [p for _, p in named], **defaults}
        if model._momentum is not None:
            # Which tells schedules, such as OneCycleLR, not to change it.
            del defaults["momentum"]
        super().__init__([group], defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """One group only: all parameters of the model."""
        if self.param_groups:
            raise ValueError(
                f"{type(self).__name__} has one group of parameters, those of"
                " its model: use an optimiser of torch's for several"
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Updates the weights from the last backward pass.

        The group's ``lr`` and the rest are read anew, so that schedulers work.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        self._check(group)
        self._model._core.optimizer_step(**self._settings(group))
        return loss

    def state_dict(self) -> dict[str, Any]:
        """With this rank's momentum and residual: each rank saves its own."""
        state = super().state_dict()
        state["session"] = self._model.comm_state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of this rank; takes over the session's part, too."""
        state = dict(state_dict)
        session = state.pop("session")
        super().load_state_dict(state)
        self._model.load_comm_state_dict(session)

    def _settings(self, group: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _check(self, group: dict[str, Any]) -> None:
        model = self._model
        if model._momentum not in (None, group["momentum"]):
            raise ValueError(
                f"momentum={group['momentum']} differs from the model's, with"
                f" which its residual decays: {model._momentum}"
            )


class SGD(_ChunkAware):
    """Momentum SGD: u = momentum * u + lr * (g + weight_decay * w); w -= u.

    The learning rate is inside of u, as in the paper, where torch's multiplies
    u with it: alike as long as it does not change.
    """

    def __init__(
        self,
        model: DataParallel,
        lr: float,
        momentum: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            model,
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            },
        )

    def _settings(self, group: dict[str, Any]) -> dict[str, Any]:
        return {
            "lars": False,
            "lr": float(group["lr"]),
            "momentum": group["momentum"],
            "weight_decay": group["weight_decay"],
            "nesterov": group["nesterov"],
            "eta": 0.0,
            "eps": 0.0,
        }


class LARS(_ChunkAware):
    """SGD with a rate per layer: eta * |w| / (|g| + weight_decay * |w| + eps).

    Biases and other parameters of at most one dimension keep ``lr``. With CSC
    |w| is of the whole layer, and |g| of what was sent.
    """

    def __init__(
        self,
        model: DataParallel,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0,
        eta: float = 0.001,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(
            model,
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "eta": eta,
                "eps": eps,
            },
        )

    def _settings(self, group: dict[str, Any]) -> dict[str, Any]:
        return {
            "lars": True,
            "lr": float(group["lr"]),
            "momentum": group["momentum"],
            "weight_decay": group["weight_decay"],
            "nesterov": False,
            "eta": group["eta"],
            "eps": group["eps"],
        }
