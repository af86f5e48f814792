"""How the product is compiled: Bazel's rules, by the usual names.

A third of the time of compiling a file goes into the standard library's headers. They
are compiled once, and each file of the product starts from there. It still includes
what it uses: tests/lint/includes.py looks for that.

Half of the rest would go into the product's own headers. Where clang builds, for the
sanitizers, it compiles several sources of a library as one.
"""

load(":precompiled.bzl", "precompiled_header")
load(":units.bzl", "units")

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

def in_units(name, srcs, hdrs, deps, testonly = False):
    """What to compile in place of the sources among `srcs`, a list."""
    sources = [file for file in srcs if file.endswith(".cc")]
    if len(sources) < 2:
        return srcs
    others = [file for file in srcs if file not in sources]
    units(
        name = name + "_units",
        testonly = testonly,
        srcs = sources,
        hdrs = others + hdrs,
        deps = deps,
        tags = ["manual"],
    )
    return others + [name + "_units"]

def cc_library(name, srcs = [], hdrs = [], copts = [], deps = [], **kwargs):
    copts, started = _start(srcs, copts, deps)
    if type(srcs) == "list":
        srcs = select({
            "//gradientflow/build_defs:clang": in_units(name, srcs, hdrs, deps),
            "//conditions:default": srcs,
        })
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = copts,
        deps = started,
        **kwargs
    )

def product_precompiled_header():
    precompiled_header(
        name = "precompiled",
        header = "precompiled.inc",
        visibility = ["//visibility:public"],
    )
