"""Handwritten digits, and a small network that learns them, for NumPy."""

import math
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy


class Random:
    """The same numbers on every machine (splitmix64, Steele et al. 2014)."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def bits(self) -> int:
        mask = (1 << 64) - 1
        self._state = (self._state + 0x9E3779B97F4A7C15) & mask
        z = self._state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    def normal(self) -> float:
        """Mean 0, variance 1 (Box and Muller)."""
        one, other = (((self.bits() >> 12) + 0.5) / 2**52 for _ in range(2))
        return math.sqrt(-2 * math.log(one)) * math.cos(2 * math.pi * other)

    def permutation(self, n: int) -> list[int]:
        """0 to n - 1 in random order (Fisher and Yates)."""
        order = list(range(n))
        for i in range(n, 1, -1):
            at = self.bits() % i
            order[i - 1], order[at] = order[at], order[i - 1]
        return order


class Digits(NamedTuple):
    pixels: numpy.ndarray  # [image][64], 0 (white) to 1.
    labels: numpy.ndarray  # 0 to 9.


def load(path: pathlib.Path, seed: int) -> tuple[Digits, Digits]:
    """Reads 64 pixels from 0 to 16 and a label per image. Returns the images to
    train on, and a random fifth of all for tests."""
    table = numpy.loadtxt(path, delimiter=",", skiprows=1, dtype=numpy.int64)
    pixels, labels = table[:, :64].astype(numpy.float32) / 16, table[:, 64]
    order = Random(seed).permutation(len(table))
    test = len(table) // 5
    return (Digits(pixels[order[test:]], labels[order[test:]]),
            Digits(pixels[order[:test]], labels[order[:test]]))


class Network:
    """A multi-layer perceptron: affine layers with ReLU between them and a
    softmax cross-entropy loss."""

    def __init__(self, widths: list[int], seed: int,
                 dtype: type = numpy.float32) -> None:
        """`widths`: inputs, hidden layers, classes. Weights have a variance of
        2 / inputs (He et al. 2015), biases are zero."""
        random = Random(seed)
        self.tensors: list[numpy.ndarray] = []  # Weight, bias, weight...
        for inputs, outputs in zip(widths, widths[1:]):
            normal = [random.normal() for _ in range(inputs * outputs)]
            weight = math.sqrt(2 / inputs) * numpy.array(normal)
            self.tensors += [weight.reshape(inputs, outputs).astype(dtype),
                             numpy.zeros(outputs, dtype)]
        self.correct = 0  # Of the last batch of forward().

    def forward(self, digits: Digits) -> float:
        """Returns the sum of the loss over the images."""
        pairs = list(zip(self.tensors[::2], self.tensors[1::2]))
        self._inputs = [digits.pixels]  # By layer.
        for weight, bias in pairs[:-1]:
            self._inputs.append(
                numpy.maximum(self._inputs[-1] @ weight + bias, 0))
        weight, bias = pairs[-1]
        out = self._inputs[-1] @ weight + bias
        out -= out.max(axis=1, keepdims=True)
        rows = numpy.arange(len(out))
        self.correct = int((out.argmax(axis=1) == digits.labels).sum())
        odds = numpy.exp(out)
        sums = odds.sum(axis=1, keepdims=True)
        # Softmax minus one-hot, the loss's gradient to the outputs.
        self._delta = odds / sums
        self._delta[rows, digits.labels] -= 1
        return float((numpy.log(sums[:, 0]) - out[rows, digits.labels]).sum(
            dtype=numpy.float64))

    def backward(self, scale: float, gradients: list[numpy.ndarray],
                 ready: Callable[[int], None]) -> None:
        """Writes the gradients of `scale` times what forward() returned, and
        calls ready(i) after tensor i's, from the last to the first."""
        delta = self._delta * self._delta.dtype.type(scale)
        for layer in reversed(range(len(self._inputs))):
            inputs = self._inputs[layer]
            delta.sum(axis=0, out=gradients[2 * layer + 1])
            ready(2 * layer + 1)
            numpy.matmul(inputs.T, delta, out=gradients[2 * layer])
            ready(2 * layer)
            delta = (delta @ self.tensors[2 * layer].T) * (inputs > 0)
