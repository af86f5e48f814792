"""integrations/torch/examples and tests/torch/run, as a user runs them."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import gradientflow.torch
from scripts import assert_clean, run_script

EXAMPLES = (
    pathlib.Path(__file__).resolve().parents[2] / "integrations" / "torch" / "examples"
)


def run_example(name: str, arguments: str, size: int = 2) -> float:
    """Returns the test accuracy, in percent, that it prints on rank 0."""
    code = f"""
        import runpy, sys, warnings
        warnings.simplefilter("error", UserWarning)
        sys.path.insert(0, {str(EXAMPLES)!r})
        sys.argv = [{name!r}, *{shlex.split(arguments)!r}]
        runpy.run_path({str(EXAMPLES / name)!r}, run_name="__main__")
    """
    ended = run_script(code, size)
    assert_clean(ended)
    assert not any(one.output for one in ended[1:])
    found = re.search(r"test accuracy\s+([0-9.]+) %", ended[0].output)
    assert found, ended[0].output
    return float(found[1])


@pytest.mark.parametrize(
    "example",
    ["backend.py", "data_parallel.py --compression csc"],
)
def test_learns(example: str) -> None:
    name, _, arguments = example.partition(" ")
    assert run_example(name, f"{arguments} --epochs 4 --seed 2") > 85


def test_goes_on_from_a_checkpoint(tmp_path: pathlib.Path) -> None:
    saved = f"--warmup-steps 20 --checkpoint {tmp_path}/state.%r"
    first, more = (run_example("hook.py", f"{saved} --epochs {n}") for n in (1, 6))
    assert more > first + 5 and more > 80


def test_a_run_leaves_the_library_of_another_alone(tmp_path: pathlib.Path) -> None:
    lib = pathlib.Path(gradientflow.torch.__file__).parent / "lib"
    (here,) = lib.glob("libgradientflow.so.*")
    before = here.stat().st_ino, here.read_bytes()
    # As another checkout's: the loader does not mind a byte at the end.
    other = tmp_path / here.name
    other.write_bytes(before[1] + b"\0")
    command = [pathlib.Path(__file__).parent / "run", "--python", sys.executable]
    made = subprocess.run(
        [*command, "--install-only"],
        env=dict(os.environ, LIBGRADIENTFLOW=str(other)),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    site = pathlib.Path(made.split("packages: ")[1].strip())
    installed = site / "gradientflow" / "torch" / "lib" / here.name
    try:
        assert installed.read_bytes() == before[1] + b"\0"
        assert (here.stat().st_ino, here.read_bytes()) == before
    finally:
        if site not in here.parents:
            shutil.rmtree(site)
