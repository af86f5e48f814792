"""Builds the extension against the installed torch, and packs the library.

Environment:
  LIBGRADIENTFLOW  libgradientflow.so to pack and link to; see core_library.py.
  MAX_JOBS         number of compilers to run at a time.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import sys
from typing import NoReturn

from setuptools import setup

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import core_library  # noqa: E402

TORCH_AT_LEAST = (2, 11)


def fail(text: object) -> NoReturn:
    sys.exit(f"gradientflow-torch: {text}")


try:
    import torch
except ImportError as error:
    fail(
        f"cannot import torch with {sys.executable} ({error}). Install PyTorch"
        f" {TORCH_AT_LEAST[0]}.{TORCH_AT_LEAST[1]} or newer first. If it is"
        " installed, the build runs in an environment that hides it: pass"
        " --no-build-isolation to pip, or --no-isolation to build."
    )


def torch_version() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if not found:
        fail(f"cannot read torch's version {torch.__version__!r}")
    version = int(found[1]), int(found[2])
    if version < TORCH_AT_LEAST:
        fail(
            f"needs torch {TORCH_AT_LEAST[0]}.{TORCH_AT_LEAST[1]} or newer;"
            f" {torch.__version__} is installed in {torch.__path__[0]}"
        )
    if not torch.distributed.is_available():
        fail(f"torch {torch.__version__} was built without torch.distributed")
    return version


major, minor = torch_version()
from torch.utils import cpp_extension  # noqa: E402


def jobs() -> int:
    """How many compilers may run at a time."""
    return int(os.environ.get("MAX_JOBS") or len(os.sched_getaffinity(0)))


def joined_sources(into: pathlib.Path) -> list[str]:
    """Writes files that include the sources in csrc/, and returns their names.
    A compiler spends most of its time on torch's headers, so it is one file where
    there are few cores, and at most five. Sources with the same first word, such as
    those of backend_*.cc, share a file."""
    together: dict[str, list[pathlib.Path]] = {}
    for path in sorted((HERE / "csrc").glob("*.cc")):
        word = path.stem.partition("_")[0]
        known = word if word in ("backend", "bind", "data", "hook") else "other"
        together.setdefault(known, []).append(path)
    files = max(1, min(len(together), jobs() // 2))
    parts: list[list[pathlib.Path]] = [[] for _ in range(files)]
    for i, paths in enumerate(together.values()):
        parts[i % files] += paths
    into.mkdir(parents=True, exist_ok=True)
    # Give each file the date of the newest source, so that nothing is compiled
    # in vain.
    newest = max(path.stat().st_mtime for path in (HERE / "csrc").iterdir())
    joined = []
    for i, paths in enumerate(parts):
        file = into / f"{i}.cc"
        file.write_text("".join(f'#include "{path}"\n' for path in paths))
        os.utime(file, (newest, newest))
        joined.append(str(file))
    return joined


class BuildExtension(cpp_extension.BuildExtension):
    """Puts the library into the wheel, and links the extension to it."""

    def packed_library(self) -> pathlib.Path:
        package = pathlib.Path(self.get_ext_fullpath("gradientflow.torch._C"))
        return package.resolve().parent / "lib" / core_library.name_at_run_time()

    def build_extensions(self) -> None:
        scratch = pathlib.Path(self.build_temp).resolve()
        packed = self.packed_library()
        packed.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy(core_library.find(scratch), packed)
        except core_library.NotFound as error:
            fail(error)
        for extension in self.extensions:
            extension.library_dirs.append(str(packed.parent))
            extension.sources = joined_sources(scratch / "sources")
        super().build_extensions()

    def get_outputs(self) -> list[str]:
        return [*super().get_outputs(), str(self.packed_library())]


try:
    version = core_library.header_version()
except core_library.NotFound as error:
    fail(error)

setup(
    version=f"{version // 1000}.{version % 1000}.0",
    # Torch guarantees no binary interface between minor versions.
    install_requires=[f"torch=={major}.{minor}.*"],
    ext_modules=[
        cpp_extension.CppExtension(
            name="gradientflow.torch._C",
            sources=[],  # Known once there is a folder for them.
            include_dirs=[str(HERE / "csrc"), str(core_library.CHECKOUT)],
            # The file of just this name.
            libraries=[f":{core_library.name_at_run_time()}"],
            extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden"],
            extra_link_args=["-Wl,-rpath,$ORIGIN/lib", "-Wl,--as-needed"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
