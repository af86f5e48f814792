"""Types of command line arguments, with errors that say what was expected."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"{text}: expected an integer, at least {least}")
        return value
    return parse


def integers(text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(
            f"{text}: expected positive integers with commas between")
    return values


def links(text: str) -> list[float | None]:
    """Rates in Gb/s, None for loopback."""
    return [_link(part) for part in text.split(",")]


def _link(text: str) -> float | None:
    if text == "loopback":
        return None
    try:
        gbps = float(text)
    except ValueError:
        gbps = 0
    if not 0.001 <= gbps <= 1000:
        raise argparse.ArgumentTypeError(
            f"{text}: expected loopback, or Gb/s from 0.001 to 1000")
    return gbps


def names(text: str) -> list[str]:
    return text.split(",")
