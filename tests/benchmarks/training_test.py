#!/usr/bin/python3
"""Tests of the digits and the network that the training benchmark uses."""

import collections
import math
import pathlib
import sys
import tempfile
import unittest

sys.path[:0] = ["benchmarks/training", str(pathlib.Path(__file__).parent)]
import numpy  # noqa: E402
import report_cases  # noqa: E402
from perceptron import Digits, Network, Random, load  # noqa: E402

DATA = "benchmarks/data/digits.csv"


def batch(samples, inputs, classes, dtype=numpy.float64):
    """Random pixels, some of which are exactly zero, as in the digits."""
    random = numpy.random.default_rng(17)
    pixels = random.random((samples, inputs))
    pixels[pixels < 0.2] = 0
    return Digits(pixels.astype(dtype), random.integers(classes, size=samples))


def gradients(network, digits, scale=1.0, ready=lambda i: None):
    # backward() overwrites, so the old values must not matter.
    made = [numpy.full_like(tensor, 99) for tensor in network.tensors]
    network.forward(digits)
    network.backward(scale, made, ready)
    return made


class NetworkTest(unittest.TestCase):
    def test_gradients_are_the_slopes_of_the_loss(self):
        step, scale = 1e-6, 0.7
        for widths in ([5, 3], [7, 6, 4], [9, 8, 11, 5]):
            network = Network(widths, 3, numpy.float64)
            digits = batch(6, widths[0], widths[-1])
            for i, got in enumerate(gradients(network, digits, scale)):
                tensor = network.tensors[i]
                for at in numpy.ndindex(tensor.shape):
                    was = tensor[at]
                    tensor[at] = was + step
                    above = network.forward(digits)
                    tensor[at] = was - step
                    below = network.forward(digits)
                    tensor[at] = was
                    self.assertAlmostEqual(
                        got[at], scale * (above - below) / (2 * step),
                        delta=1e-7, msg=f"tensor {i}, {at}")

    def test_float32_follows_float64(self):
        single = Network([64, 128, 128, 10], 5)
        exact = Network([64, 128, 128, 10], 5, numpy.float64)
        exact.tensors = [one.astype(numpy.float64) for one in single.tensors]
        digits = batch(33, 64, 10, numpy.float32)
        fine = gradients(exact, Digits(digits.pixels.astype(numpy.float64),
                                       digits.labels))
        for rough, wanted in zip(gradients(single, digits), fine):
            self.assertEqual(rough.dtype, numpy.float32)
            numpy.testing.assert_allclose(rough, wanted, rtol=0, atol=2e-4)

    def test_gradients_become_ready_from_the_last_tensor_to_the_first(self):
        order = []
        gradients(Network([8, 6, 5, 3], 1), batch(4, 8, 3, numpy.float32),
                  ready=order.append)
        self.assertEqual(order, [5, 4, 3, 2, 1, 0])

    def test_sums_over_samples_so_that_shards_add_up(self):
        network = Network([8, 6, 3], 1, numpy.float64)
        pixels, labels = batch(10, 8, 3)
        whole, one, other = (
            gradients(network, Digits(pixels[part], labels[part]))
            for part in (slice(10), slice(3), slice(3, 10)))
        for parts in zip(whole, one, other):
            numpy.testing.assert_allclose(parts[0], parts[1] + parts[2],
                                          rtol=0, atol=1e-12)

    def test_loss_of_even_odds_is_the_logarithm_of_the_classes(self):
        network = Network([4, 10], 1, numpy.float64)
        for tensor in network.tensors:
            tensor[:] = 0
        self.assertAlmostEqual(network.forward(batch(7, 4, 10)),
                               7 * math.log(10), delta=1e-12)

    def test_counts_the_samples_put_into_their_class(self):
        network = Network([2, 2], 1, numpy.float64)
        network.tensors[0][:] = [[1, 0], [0, 1]]
        network.forward(Digits(numpy.array([[2.0, 1], [1, 2], [3, 0]]),
                               numpy.array([0, 1, 1])))
        self.assertEqual(network.correct, 2)

    def test_starts_alike_for_the_same_seed_only(self):
        one, same, other = (Network([6, 5, 4], seed) for seed in (7, 7, 8))
        self.assertTrue((one.tensors[0] == same.tensors[0]).all())
        self.assertFalse((one.tensors[0] == other.tensors[0]).all())


class DigitsTest(unittest.TestCase):
    def test_shipped_file_has_every_image_and_class(self):
        counts = collections.Counter()
        for part, size in zip(load(DATA, 4), (1438, 359)):
            self.assertEqual(part.pixels.shape, (size, 64))
            self.assertEqual((part.pixels.min(), part.pixels.max()), (0, 1))
            counts.update(part.labels.tolist())
        self.assertEqual([counts[i] for i in range(10)],
                         [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])

    def test_split_depends_on_the_seed_only(self):
        one, same, other = (load(DATA, seed)[1].pixels for seed in (4, 4, 5))
        self.assertTrue((one == same).all())
        self.assertFalse((one == other).all())

    def error_of(self, *lines):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "digits.csv"
            path.write_text("\n".join(("header", *lines)))
            with self.assertRaises((ValueError, IndexError)):
                load(path, 1)

    def test_damaged_tables_are_errors(self):
        whole = ",".join(["1"] * 65)
        for damaged in ("1,2,3", whole.replace("1", "x", 1), whole + ",1"):
            self.error_of(whole, damaged)

    def test_missing_file_is_an_error(self):
        with self.assertRaises(FileNotFoundError):
            load("no/such/file.csv", 1)

    def test_random_numbers_are_the_same_everywhere(self):
        # The first number of splitmix64 from the state 0.
        self.assertEqual(Random(0).bits(), 0xE220A8397B1DCDAF)
        self.assertEqual(sorted(Random(1).permutation(100)), list(range(100)))
        values = [Random(seed).normal() for seed in range(2000)]
        self.assertAlmostEqual(numpy.mean(values), 0, delta=0.1)
        self.assertAlmostEqual(numpy.std(values), 1, delta=0.1)


if __name__ == "__main__":
    report_cases.main()
