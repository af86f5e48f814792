"""How the product is compiled: Bazel's rules, by the usual names.

A third of the time of compiling a file goes into the standard library's headers. The
clang builds, which are those of the sanitizers, compile them once and start each
file of the product from there. gcc's build does not, so that it finds a missing
#include.
"""

load(":precompiled.bzl", "precompiled_header")

def _start(srcs, copts, deps):
    """What a target of the product is compiled with, and depends on."""
    if not [file for file in srcs if file.endswith(".cc")]:
        return copts, deps
    if [file for file in srcs if file.endswith(".c")]:
        return copts, deps
    header = "$(BINDIR)/gradientflow/build_defs/precompiled.h.gch"
    first = select({
        # No note of the system headers that were read, as their names are absolute.
        "//gradientflow/build_defs:clang": [
            "-MMD",
            "-Wno-unused-command-line-argument",
            "-include-pch",
            header,
        ],
        "//conditions:default": [],
    })
    start = select({
        "//gradientflow/build_defs:clang": [
            "//gradientflow/build_defs:precompiled",
        ],
        "//conditions:default": [],
    })
    return first + copts, deps + start

def cc_library(srcs = [], copts = [], deps = [], **kwargs):
    copts, deps = _start(srcs, copts, deps)
    native.cc_library(srcs = srcs, copts = copts, deps = deps, **kwargs)

def product_precompiled_header():
    precompiled_header(
        name = "precompiled",
        header = "precompiled.inc",
        visibility = ["//visibility:public"],
    )
