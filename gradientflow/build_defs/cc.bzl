"""How the product is compiled: Bazel's rules, by the usual names.

A third of the time of compiling a file goes into the standard library's headers. They
are compiled once, and each file of the product starts from there. It still includes
what it uses: tests/lint/includes.py looks for that.
"""

load(":precompiled.bzl", "precompiled_header")

def _start(srcs, copts, deps):
    """What a target of the product is compiled with, and depends on."""
    if not [file for file in srcs if file.endswith(".cc")]:
        return copts, deps
    if [file for file in srcs if file.endswith(".c")]:
        return copts, deps
    header = "$(BINDIR)/gradientflow/build_defs/precompiled.h"

    # gcc does not use what it has compiled with other options.
    gcc = [] if copts else ["-Winvalid-pch", "-include", header]
    first = select({
        # No note of the system headers that were read, as their names are absolute.
        "//gradientflow/build_defs:clang": [
            "-MMD",
            "-Wno-unused-command-line-argument",
            "-include-pch",
            header + ".gch",
        ],
        "//conditions:default": gcc,
    })
    return first + copts, deps + ["//gradientflow/build_defs:precompiled"]

def cc_library(srcs = [], copts = [], deps = [], **kwargs):
    copts, deps = _start(srcs, copts, deps)
    native.cc_library(srcs = srcs, copts = copts, deps = deps, **kwargs)

def product_precompiled_header():
    precompiled_header(
        name = "precompiled",
        header = "precompiled.inc",
        visibility = ["//visibility:public"],
    )
