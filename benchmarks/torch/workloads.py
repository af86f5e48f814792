"""What is trained: torchvision's networks with a real backward, or a replay.

A replay has a model's parameters, and a backward that produces their gradients,
last layer first, without computing them. So communication can be measured for
networks whose backward would take minutes on a CPU. Layers are ready when the
modelled GPU would have them ready; until then the thread sleeps, like a thread
that drives a GPU.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import torch
from lib import models
from torch import nn

TORCHVISION = ("alexnet", "resnet50", "resnet101", "vgg16")


class Layer(NamedTuple):
    """Tensors whose gradients are ready at the same moment of backward."""

    shapes: list[tuple[int, ...]]  # In forward order.
    ready_seconds: float  # After backward began.


def layers_of(model: str) -> list[Layer]:
    """Returns the layers of `model`, in forward order. Backward takes its time
    if that was measured, else none."""
    layers: dict[str, Layer] = {}
    for tensor in models.load(model)["tensors"]:
        name = tensor["name"].rpartition(".")[0]
        ready = tensor["ready_seconds"] * (model in models.MEASURED)
        # The first tensor of a layer is the last one to be ready.
        layer = layers.setdefault(name, Layer([], ready))
        layer.shapes.append(tuple(map(int, tensor["shape"].split("x"))))
    return list(layers.values())


class _Produce(torch.autograd.Function):
    """Passes a number on; its backward returns the layer's gradients."""

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
    def __init__(self, layer: Layer, generator: torch.Generator) -> None:
        super().__init__()
        self.parameters_of_layer = nn.ParameterList(
            torch.zeros(shape) for shape in layer.shapes)
        # Variances differ between layers as real gradients' do, and not inside
        # one.
        scale = 1e-3 / math.sqrt(max(math.prod(layer.shapes[0]), 1))
        self.gradients = [torch.randn(shape, generator=generator) * scale
                          for shape in layer.shapes]
        self.backward_began = 0.0
        self._ready_seconds = layer.ready_seconds

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        return _Produce.apply(number, self, *self.parameters_of_layer)

    def wait(self) -> None:
        left = self.backward_began + self._ready_seconds - time.perf_counter()
        if self._ready_seconds > 0 and left > 0:
            time.sleep(left)


class Replay(nn.Module):
    """A model whose gradients come from a table; see the module's text.

    The gradients are random, differ between seeds, and are the same in every
    step.
    """

    def __init__(self, layers: list[Layer], seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList(_ReplayLayer(layer, generator)
                                    for layer in layers)

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            number = layer(number)
        number.register_hook(self._begin)
        return number

    def _begin(self, gradient: torch.Tensor) -> None:
        now = time.perf_counter()
        for layer in self.layers:
            layer.backward_began = now


class Workload:
    """A model with a loss to call backward on. Gradients depend on `seed`;
    weights are the same for all seeds.

    It is a replay, unless `images` gives the batch for a real backward of one
    of torchvision's networks.
    """

    def __init__(self, model: str, *, seed: int, images: int = 0,
                 device: torch.device | None = None) -> None:
        torch.manual_seed(0)
        if not images:
            self.model: nn.Module = Replay(layers_of(model), seed)
            self._inputs = torch.zeros((), requires_grad=True)
            return
        import torchvision.models
        self.model = getattr(torchvision.models, model)().to(device)
        generator = torch.Generator().manual_seed(seed)
        self._inputs = torch.randn(images, 3, 224, 224,
                                   generator=generator).to(device)
        self._labels = torch.randint(1000, (images,),
                                     generator=generator).to(device)

    def loss(self, model: nn.Module) -> torch.Tensor:
        """The loss of `model`: self.model, or a wrapper of it."""
        outputs = model(self._inputs)
        if outputs.dim() == 0:
            return outputs
        return nn.functional.cross_entropy(outputs, self._labels)
