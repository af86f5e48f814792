"""What is trained: torchvision's networks with a real backward, or a replay.

A replay has a model's parameters, and a backward that produces their gradients,
last layer first, without computing them: communication can be measured for
networks whose backward would take minutes on a CPU. Layers are ready when the
modelled GPU would have them ready; until then the thread sleeps, as the one
that drives a GPU does.
"""

from __future__ import annotations

import csv
import math
import pathlib
import time
from typing import Any, NamedTuple

import torch
from torch import nn

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
TORCHVISION = ("alexnet", "resnet50", "resnet101", "vgg16")
# The networks of the paper, with their backward as profiled on a V100.
PROFILED = ("alexnet_bn", "resnet50_gf")


class Layer(NamedTuple):
    """Tensors whose gradients are ready at the same moment of backward."""

    shapes: list[tuple[int, ...]]  # In forward order.
    ready_seconds: float  # After backward began.


def _rows(path: pathlib.Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("x"))


def layers_of(model: str, backward_seconds: float | None) -> list[Layer]:
    """The layers of `model`, in forward order.

    `backward_seconds` is shared out by the layers' operations; None: as
    profiled, for the models of PROFILED, else 0.
    """
    table = _rows(DATA / "models" / f"{model}.csv")
    names: list[str] = []
    shapes: list[list[tuple[int, ...]]] = []
    flops: list[float] = []
    for row in table:
        layer = row["name"].rpartition(".")[0]
        if not names or names[-1] != layer:
            names.append(layer)
            shapes.append([])
            flops.append(0)
        shapes[-1].append(_shape(row["shape"]))
        flops[-1] += float(row["fwd_flops"])
    if backward_seconds is None and model in PROFILED:
        profile = _rows(DATA / "profiles" / f"{model}_v100_fp16_b128.csv")
        ready = {row["name"].rpartition(".")[0]: float(row["ready_ms"]) / 1e3
                 for row in profile}
        return [Layer(shapes[i], ready[name]) for i, name in enumerate(names)]
    total, done, layers = sum(flops), 0.0, []
    for i in reversed(range(len(names))):
        done += flops[i]
        layers.append(Layer(shapes[i], (backward_seconds or 0) * done / total))
    return layers[::-1]


class _Produce(torch.autograd.Function):
    """Passes a number on; its backward gives the layer's gradients."""

    @staticmethod
    def forward(ctx: Any, number: torch.Tensor, layer: _ReplayLayer,
                *parameters: torch.Tensor) -> torch.Tensor:
        ctx.layer = layer
        return number.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.layer.wait()
        return gradient, None, *ctx.layer.gradients


class _ReplayLayer(nn.Module):
    def __init__(self, layer: Layer, clock: _Clock,
                 generator: torch.Generator) -> None:
        super().__init__()
        self.parameters_of_layer = nn.ParameterList(
            torch.zeros(shape) for shape in layer.shapes)
        # As spread as gradients are between layers, and alike inside one.
        scale = 1e-3 / math.sqrt(max(math.prod(layer.shapes[0]), 1))
        self.gradients = [torch.randn(shape, generator=generator) * scale
                          for shape in layer.shapes]
        self._ready_seconds = layer.ready_seconds
        self._clock = clock

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        return _Produce.apply(number, self, *self.parameters_of_layer)

    def wait(self) -> None:
        self._clock.wait_until(self._ready_seconds)


class _Clock:
    """Time since backward began."""

    def __init__(self) -> None:
        self.begin = 0.0

    def wait_until(self, seconds: float) -> None:
        left = self.begin + seconds - time.perf_counter()
        if seconds > 0 and left > 0:
            time.sleep(left)


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, number: torch.Tensor, clock: _Clock) -> torch.Tensor:
        ctx.clock = clock
        return number.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.clock.begin = time.perf_counter()
        return gradient, None


class Replay(nn.Module):
    """A model whose gradients come from a table; see the module's text.

    The gradients are random, differ between seeds, and are the same in every
    step.
    """

    def __init__(self, layers: list[Layer], seed: int) -> None:
        super().__init__()
        self._clock = _Clock()
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList(
            _ReplayLayer(layer, self._clock, generator) for layer in layers)

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            number = layer(number)
        return _Start.apply(number, self._clock)


class Workload:
    """A model with inputs; everything random comes from `seed`, except the
    weights, which are the same for all."""

    def __init__(self, model: str, *, backward: str, batch: int, seed: int,
                 backward_seconds: float | None = None,
                 device: torch.device | None = None) -> None:
        """`backward`: "real" or "replay"; `batch` is for real ones."""
        self.device = device or torch.device("cpu")
        self.images = batch
        torch.manual_seed(0)
        if backward == "replay":
            layers = layers_of(model, backward_seconds)
            self.model: nn.Module = Replay(layers, seed)
            self._inputs = torch.zeros((), requires_grad=True)
            return
        if model not in TORCHVISION:
            raise ValueError(f"{model}: expected one of "
                             f"{', '.join(TORCHVISION)} for a real backward")
        import torchvision.models
        self.model = getattr(torchvision.models, model)().to(self.device)
        generator = torch.Generator().manual_seed(seed)
        self._inputs = torch.randn(batch, 3, 224, 224,
                                   generator=generator).to(self.device)
        self._labels = torch.randint(1000, (batch,),
                                     generator=generator).to(self.device)

    def loss(self, model: nn.Module) -> torch.Tensor:
        """Of `model`: self.model, or a wrapper of it."""
        outputs = model(self._inputs)
        if outputs.dim() == 0:
            return outputs
        return nn.functional.cross_entropy(outputs, self._labels)
