"""Finds libgradientflow.so, the core that the extension links to.

    python core_library.py FOLDER

prints its path. The first that exists is taken: the file that LIBGRADIENTFLOW
names; that of an optimised Bazel build in this checkout, if it is newer than
all sources; the one that integrations/c/build_library.sh builds into FOLDER,
which is reused until the sources change.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import re
import subprocess
import sys

NAME = "libgradientflow.so"
CHECKOUT = pathlib.Path(__file__).resolve().parent.parent.parent
_C_API = CHECKOUT / "integrations" / "c"
_FOLDERS = ("gradientflow", "kernels", "transports", "integrations/c")


class NotFound(Exception):
    """The library cannot be found; the text says what is missing and what to
    do."""


def header_version() -> int:
    """Returns the version of the header in this checkout: major * 1000 + minor."""
    header = _C_API / "gradientflow_base.h"
    if not header.is_file():
        raise NotFound(
            f"{header} is missing: build from a checkout of GradientFlow, of"
            " which this directory is a part"
        )
    text = header.read_text()
    found = [
        re.search(rf"GF_VERSION_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR")
    ]
    if not all(found):
        raise NotFound(f"{header} states no version")
    major, minor = (int(match[1]) for match in found)
    return major * 1000 + minor


def name_at_run_time() -> str:
    """Returns the name by which programs of this major version load it."""
    return f"{NAME}.{header_version() // 1000}"


def find(scratch: pathlib.Path) -> pathlib.Path:
    """Returns the library, and builds it below `scratch` if need be."""
    given = os.environ.get("LIBGRADIENTFLOW")
    if given:
        if not pathlib.Path(given).is_file():
            raise NotFound(f"LIBGRADIENTFLOW={given}: no such file")
        return _checked(pathlib.Path(given).resolve())
    by_bazel = CHECKOUT / "bazel-bin" / "integrations" / "c" / NAME
    if by_bazel.is_file() and _is_optimised(by_bazel) and _is_newest(by_bazel):
        return _checked(by_bazel.resolve())
    return _checked(_build(scratch))


def _version(library: pathlib.Path) -> int:
    try:
        return ctypes.CDLL(str(library)).gf_version()
    except (OSError, AttributeError) as error:
        raise NotFound(f"{library} is no {NAME}: {error}") from error


def _checked(library: pathlib.Path) -> pathlib.Path:
    has, needs = _version(library), header_version()
    if has // 1000 != needs // 1000 or has < needs:
        raise NotFound(
            f"{library} has version {has // 1000}.{has % 1000}, and"
            f" {needs // 1000}.{needs % 1000} is needed"
        )
    return library


def _is_optimised(library: pathlib.Path) -> bool:
    """Whether it is not of a debug or sanitizer configuration of Bazel's."""
    return re.search(r"/[^/-]+-opt/bin/", str(library.resolve())) is not None


def _sources() -> list[pathlib.Path]:
    return sorted(
        path
        for folder in _FOLDERS
        for path in (CHECKOUT / folder).rglob("*")
        if path.suffix in (".cc", ".h", ".cu", ".cuh", ".map", ".sh")
    )


def _is_newest(library: pathlib.Path) -> bool:
    built = library.stat().st_mtime
    return all(path.stat().st_mtime <= built for path in _sources())


def _build(scratch: pathlib.Path) -> pathlib.Path:
    script = _C_API / "build_library.sh"
    if not script.is_file():
        raise NotFound(f"{script} is missing; set LIBGRADIENTFLOW to a {NAME}")
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(str(path.relative_to(CHECKOUT)).encode())
        digest.update(path.read_bytes())
    library = scratch / digest.hexdigest()[:16] / NAME
    if not library.is_file():
        # The compiler's output is for people, so it goes to stderr; stdout has
        # the path for programs.
        if subprocess.run([str(script), str(library)], stdout=sys.stderr).returncode:
            raise NotFound(
                f"{script} failed, as said above; or set LIBGRADIENTFLOW to a"
                f" {NAME} built elsewhere"
            )
    return library


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        print(find(pathlib.Path(sys.argv[1]).resolve()))
    except NotFound as error:
        sys.exit(f"{sys.argv[0]}: {error}")
