"""How tests are compiled: Bazel's rules, by the usual names.

Half of the time of compiling a test would go into googletest's headers and the
standard library's. They are compiled once for each level of optimisation, and
whatever depends on googletest starts from there.

Half of the rest would go into the product's headers and the templates that they
use. So those sources of a test that are named *_test.cc are compiled as one, and
others in groups of those that define nothing of the same name.
"""

load("//gradientflow/build_defs:cc.bzl", "in_units")
load("//gradientflow/build_defs:precompiled.bzl", "precompiled_header")

# Without optimisation, a test compiles in less than half the time. The oracles and the
# ranks of these folders work through so many elements that they would lose more than
# that when they run; of the tests that call them, those below would. "": what the
# configuration says, for the tests as well.
_LEVELS = {
    "tests/collectives": "-O1",
    "tests/communicator": "-O1",
    "tests/csc": "-O1",
    "tests/cuda_ptx": "",
    "tests/cuda_shim": "",
    "tests/kernels": "",
    "tests/optimizer": "-O1",
    "tests/session": "-O1",
}

_OPTIMISED_TESTS = [
    "tests/collectives:feed_test",
    "tests/collectives:schedules_test",
    "tests/communicator:allreduce_test",
    "tests/communicator:collectives_test",
    "tests/communicator:groups_test",
    "tests/communicator:rdma_jobs_test",
    "tests/session:loss_scale_test",
]

def _level(test):
    """The level of a library, or of the test of that name."""
    package = native.package_name()
    level = _LEVELS.get(package, "-O0")
    if not test or not level or package + ":" + test in _OPTIMISED_TESTS:
        return level
    return "-O0"

def _copts(level):
    if not level:
        return []

    # Undefined behaviour of the tests themselves is not worth a quarter of their
    # compile time.
    return [level, "-U_FORTIFY_SOURCE"] + select({
        "//tests:asan": ["-fno-sanitize=undefined"],
        "//conditions:default": [],
    })

def _start(srcs, copts, deps, test = None):
    """What a target of tests is compiled with, and depends on."""
    level = _level(test)
    if not srcs or not [dep for dep in deps if dep.startswith("@googletest//")]:
        return _copts(level) + copts, deps
    name = "precompiled" + level.replace("-", "_")
    header = "$(BINDIR)/tests/%s.h" % name
    first = select({
        # No note of the system headers that were read, as their names are absolute.
        "//gradientflow/build_defs:clang": [
            "-MMD",
            "-Wno-unused-command-line-argument",
            "-include-pch",
            header + ".gch",
        ],
        # Where it cannot be used, that is slow, but no error.
        "//conditions:default": [
            "-Winvalid-pch",
            "-Wno-error=invalid-pch",
            "-include",
            header,
        ],
    })
    return _copts(level) + first + copts, deps + ["//tests:" + name]

def _one_unit(name, srcs):
    """What to compile instead of a test's `srcs`: one source with the text of all tests.

    Each test's `namespace {` becomes `namespace <its name>_cc { namespace {`, so that
    tests may use the same names there. Messages name the tests' own files and lines.
    Sources that a select() chooses stay as they are.
    """
    if type(srcs) != "list":
        return srcs
    tests = [source for source in srcs if source.endswith("_test.cc")]
    if len(tests) < 2:
        return srcs
    native.genrule(
        name = name + "_unit",
        testonly = True,
        srcs = tests,
        outs = [name + "_unit.cc"],
        cmd = "for source in $(SRCS); do" +
              " part=$${source##*/};" +
              " echo \"#line 1 \\\"$$source\\\"\";" +
              " sed -e \"s|^namespace {$$|namespace $${part%.cc}_cc { namespace {|\"" +
              " -e 's|^}  // namespace$$|}}  // namespace|' $$source;" +
              " done >$@",
        local = True,
        tags = ["manual"],
    )
    return [file for file in srcs if file not in tests] + [name + "_unit.cc"]

def _grouped(name, srcs, hdrs, deps):
    """What to compile instead of `srcs`, of which a test's are one unit already."""
    if type(srcs) != "list":
        return srcs
    unit = [source for source in srcs if source == name + "_unit.cc"]
    others = [source for source in srcs if source not in unit]
    return unit + in_units(name, others, hdrs, deps, testonly = True)

def cc_library(name, srcs = [], hdrs = [], copts = [], deps = [], **kwargs):
    copts, started = _start(srcs, copts, deps)
    native.cc_library(
        name = name,
        srcs = _grouped(name, srcs, hdrs, deps),
        hdrs = hdrs,
        copts = copts,
        deps = started,
        **kwargs
    )

def cc_binary(name, srcs = [], copts = [], deps = [], **kwargs):
    copts, started = _start(srcs, copts, deps)
    native.cc_binary(
        name = name,
        srcs = _grouped(name, srcs, [], deps),
        copts = copts,
        deps = started,
        **kwargs
    )

def cc_test(name, srcs = [], copts = [], deps = [], **kwargs):
    copts, started = _start(srcs, copts, deps, name)
    native.cc_test(
        name = name,
        srcs = _grouped(name, _one_unit(name, srcs), [], deps),
        copts = copts,
        deps = started,
        **kwargs
    )

def precompiled_headers():
    for level in ["", "-O0", "-O1"]:
        precompiled_header(
            name = "precompiled" + level.replace("-", "_"),
            testonly = True,
            header = "precompiled.inc",
            copts = _copts(level),
            deps = ["@googletest//:gtest"],
        )
