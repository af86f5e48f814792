#!/usr/bin/env python3
"""Checks every #include of our own headers against the layers of the design.

A folder may include itself, whatever lies on a lower layer, and what EXTRA
names. Bazel's layering_check sees to it that includes match deps; this sees to
it that deps go downwards, whatever visibility says.
"""

import pathlib
import re
import subprocess
import sys

LAYERS = {
    "kernels": 0,
    "gradientflow/base": 0,
    "gradientflow/device": 1,
    "gradientflow/observe": 1,
    "gradientflow/config": 1,
    "transports": 1,
    "transports/common": 2,
    "transports/collectives": 2,
    "transports/shm": 3,
    "transports/tcp": 3,
    "transports/rdma": 3,
    "transports/inproc": 4,
    "transports/nccl": 4,
    "transports/rendezvous": 4,
    "gradientflow/core": 5,
    "gradientflow/planner": 5,
    "gradientflow/aggregation": 6,
    "gradientflow/control": 6,
    "gradientflow": 7,
    "integrations": 8,
    "benchmarks": 9,
    "tests": 10,
}
# Exceptions: (folder, header or folder it may also include).
EXTRA = [
    ("gradientflow/base", "kernels/types.h"),
    ("gradientflow/observe", "gradientflow/config/options.h"),
    # The interface of shared memory, which one-sided schedules run on.
    ("transports/collectives", "transports/shm/arena.h"),
]
TOPS = {name.split("/")[0] for name in LAYERS}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def folder_of(path):
    """The longest name in LAYERS that `path` lies in, or None."""
    parts = path.split("/")[:-1]
    while parts:
        name = "/".join(parts)
        if name in LAYERS:
            return name
        parts.pop()
    return None


def allowed(source, header):
    here, there = folder_of(source), folder_of(header)
    if here == there:
        return True
    if any(here == a and (header == b or there == b) for a, b in EXTRA):
        return True
    return there is not None and LAYERS[there] < LAYERS[here]


def violations(source, text):
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match or match.group(1).split("/")[0] not in TOPS:
            continue
        if not allowed(source, match.group(1)):
            yield f"{source}:{number}: may not include {match.group(1)}"


def self_test():
    assert not list(violations("gradientflow/core/a.cc",
                               '#include "gradientflow/base/status.h"'))
    assert list(violations("gradientflow/base/a.h",
                           '#include "gradientflow/core/a.h"'))
    assert list(violations("kernels/cpu/a.cc",
                           '#include "gradientflow/base/status.h"'))
    assert list(violations("transports/tcp/a.cc",
                           '#include "transports/shm/arena.h"'))
    assert list(violations("gradientflow/core/a.cc", '#include "tests/a.h"'))


def main():
    self_test()
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.cc", "*.h",
         "*.cu", "*.cuh", "*.c"], check=True, capture_output=True, text=True)
    bad, seen = [], 0
    for source in sorted(set(listed.stdout.split())):
        if not pathlib.Path(source).exists():
            continue
        if folder_of(source) is None:
            bad.append(f"{source}: no layer for this folder in {__file__}")
            continue
        seen += 1
        bad += violations(source, pathlib.Path(source).read_text())
    if not seen:
        bad.append("no sources found: is this a git checkout?")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
