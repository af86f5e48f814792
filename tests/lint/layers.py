#!/usr/bin/env python3
"""Checks every #include of our own headers against the layers of the design.

A folder may include its own headers and those of the folders in rows above it
in the table of design.md. includes.py ensures that includes match deps; this
program ensures that deps go upwards in the table, whatever visibility allows.
"""

import pathlib
import re
import subprocess
import sys

DESIGN = pathlib.Path("gradientflow/docs/design.md")


def read_layers():
    """Returns folder -> row of the table under the heading "Layers"."""
    section = DESIGN.read_text().split("\n## Layers\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\|\s*(`.*?)\s*\|", section, re.MULTILINE)
    layers = {}
    for number, row in enumerate(rows):
        for folder in re.findall(r"`([^`]+)`", row):
            if folder in layers:
                sys.exit(f"{DESIGN}: {folder} stands in two rows")
            layers[folder] = number
    return layers


LAYERS = read_layers()
TOPS = {name.split("/")[0] for name in LAYERS}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def folder_of(path):
    """Returns the longest name in LAYERS that contains `path`, or None."""
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
    return there is not None and LAYERS[there] < LAYERS[here]


def violations(source, text):
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match or match.group(1).split("/")[0] not in TOPS:
            continue
        if not allowed(source, match.group(1)):
            yield f"{source}:{number}: may not include {match.group(1)}"


def self_test():
    assert not list(violations("gradientflow/csc/a.cc",
                               '#include "gradientflow/base/status.h"'))
    assert list(violations("gradientflow/base/a.h",
                           '#include "gradientflow/csc/a.h"'))
    assert list(violations("kernels/cpu/a.cc",
                           '#include "gradientflow/base/status.h"'))
    assert list(violations("transports/tcp/a.cc",
                           '#include "transports/shm/fifo.h"'))
    assert list(violations("gradientflow/csc/a.cc", '#include "tests/a.h"'))


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
            bad.append(f"{source}: no layer for this folder in {DESIGN}")
            continue
        seen += 1
        bad += violations(source, pathlib.Path(source).read_text())
    if not seen:
        bad.append("no sources found: is this a git checkout?")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
