#!/usr/bin/env python3
"""Checks the house rules that no compiler or clang-tidy checks."""

import pathlib
import re
import subprocess
import sys

MOST_LINES = 500
USUAL_LINES = 300  # For nine files of ten.

SOURCE = (".cc", ".h", ".cu", ".cuh", ".c")
CODE = SOURCE + (".py", ".sh", ".bzl")


def in_tests(path):
    return path.startswith("tests/") and path.endswith(SOURCE)


def is_source(path):
    return path.endswith(SOURCE)


def outside_cuda(path):
    return is_source(path) and not (
        path.startswith(("kernels/cuda/", "gradientflow/nccl/",
                         "gradientflow/device/cuda_", "tests/"))
        or (path.startswith("integrations/torch/") and path.endswith(".cc")))


def is_library(path):
    return is_source(path) and path.startswith(
        ("gradientflow/", "kernels/", "transports/", "integrations/c/"))


# What is forbidden, where the rule applies, and why.
RULES = [
    (r"\bgetenv\s*\(", is_source, "settings come in through Options"),
    (r"\b(sleep_for|sleep_until|usleep|nanosleep)\s*\(|[^_\w.]sleep\s*\(",
     in_tests, "tests do not sleep: use a manual clock or wait for an event"),
    (r"#\s*include\s*[<\"](cuda|nccl|nvml|cublas)", outside_cuda,
     "CUDA headers stay in the CUDA folders"),
    (r"#\s*if.*\bCUDA\b|#\s*ifdef\s+__CUDACC__", outside_cuda,
     "no #ifdef on CUDA: select() picks the file"),
    (r"^\s*throw\b", is_library, "library code returns a Status"),
    (r"\bDISABLED_", in_tests, "no disabled tests"),
    (r"\b(TODO|FIXME|XXX)\b", is_source, "finish it, or open an issue"),
    (r"^using namespace std\b", is_source, "no using namespace"),
]
# What may stand at the top; names with a dot in front are settings of tools.
TOP = {"BUILD", "README.md", "WORKSPACE", "benchmarks", "gradientflow",
       "integrations", "kernels", "tests", "transports"}
COMMENT = re.compile(r"//.*|/\*.*?\*/")
# `environ` is read where a process begins, and passed down from there.
ENVIRON = re.compile(r"::environ\b|\bextern\b.*\benviron\b")
# A whole test program runs on the devices that it was given.
ENVIRON_TOO = {"tests/rdma/cards.h"}
MAIN = re.compile(r"\bint main\s*\(|^\s*\w*_?MAIN\s*\(|gf_options_from_env",
                  re.M)


def problems(path, text):
    lines = text.splitlines()
    if path.endswith(CODE) and len(lines) > MOST_LINES:
        yield f"{path}: {len(lines)} lines; {MOST_LINES} is the most"
    rules = [(re.compile(p), why) for p, where, why in RULES if where(path)]
    for number, line in enumerate(lines, 1):
        for pattern, why in rules:
            words = "TODO" in pattern.pattern
            if pattern.search(line if words else COMMENT.sub("", line)):
                yield f"{path}:{number}: {line.strip()}: {why}"
    if is_source(path) and path.endswith(".h"):
        # Highway's -inl.h files are included once per instruction set.
        if "#pragma once" not in text and not (
                path.startswith("integrations/c/")
                or path.endswith("-inl.h")):
            yield f"{path}: no #pragma once"
    code = COMMENT.sub("", text)
    if (is_source(path) and path not in ENVIRON_TOO
            and ENVIRON.search(code) and not MAIN.search(text)):
        yield f"{path}: reads environ, and is not where a process begins"


# Where a namespace, or a type outside of all others, begins.
NAMESPACE = re.compile(r"(?:inline )?namespace\s*([\w:]*)\s*{")
TYPE = re.compile(
    r"(?:template <.*> *)?(?:struct|class|union|enum(?: class)?)\s+"
    r"(?:alignas\(.*?\)\s+|\[\[.*?\]\]\s*)?([\w:]+)(?:<.*>)?(?: final)?"
    r"\s*(?::[^;]*)?(?:{|$)")


def types(path, text):
    """The full names of the types that a file defines, and their lines."""
    spaces = []
    for number, line in enumerate(text.splitlines(), 1):
        if space := NAMESPACE.match(line):
            spaces.append(space[1] or f"(only in {path})")
        elif re.match(r"}\s*// namespace", line):
            del spaces[-1:]
        elif (found := TYPE.match(line)) and not line.endswith(";"):
            yield "::".join([*spaces, found[1]]), f"{path}:{number}"


def twins(sources):
    """Types of one name in several files: a program with both takes the
    functions of one for those of the other, and no compiler says so."""
    places = {}
    for path, text in sources.items():
        for name, place in types(path, text):
            places.setdefault(name, {})[path] = place
    for name, by_path in places.items():
        if len(by_path) > 1:
            yield f"{', '.join(by_path.values())}: {name} is several types"


def strays(paths):
    for name in sorted({path.split("/")[0] for path in paths}):
        if name not in TOP and not name.startswith("."):
            yield f"{name}: the top level has only {', '.join(sorted(TOP))}"


def self_test():
    assert list(strays(["tests/a.cc", "NOTE.txt"]))
    assert not list(strays([".ci/run", "README.md", "tests/a.cc"]))
    assert list(problems("tests/a.cc", "  usleep(3);"))
    assert list(problems("kernels/a.cc", 'auto x = getenv("A");'))
    assert list(problems("kernels/a.cc", "#include <cuda.h>"))
    assert not list(problems("kernels/cuda/a.cc", "#include <cuda.h>"))
    assert list(problems("kernels/a.cc", "a\n" * (MOST_LINES + 1)))
    assert list(problems("gradientflow/a.cc", "use(::environ);"))
    assert not list(problems("gradientflow/a.cc", "// sleep(1) getenv()"))
    one = "namespace a {\nstruct B : C {\n};\n}  // namespace a\n"
    own = f"namespace {{\n{one}}}  // namespace\n"
    assert list(twins({"a.h": one, "b.h": one.replace("struct", "enum class")}))
    assert not list(twins({"a.h": one, "b.h": one.replace("B", "D")}))
    assert not list(twins({"a.h": one, "a.cc": own, "b.cc": own}))


def main():
    self_test()
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"],
                            check=True, capture_output=True, text=True)
    paths = sorted(set(listed.stdout.splitlines()))
    bad, lengths, sources = list(strays(paths)), {}, {}
    for path in paths:
        file = pathlib.Path(path)
        if not path.endswith(CODE) or not file.exists():
            continue
        text = file.read_text()
        lengths[path] = text.count("\n")
        bad += problems(path, text)
        if is_source(path):
            sources[path] = text
    bad += twins(sources)
    long = [p for p, n in lengths.items() if n > USUAL_LINES]
    if not lengths:
        bad.append("no sources found: is this a git checkout?")
    elif len(long) * 10 > len(lengths):
        bad.append(f"{len(long)} of {len(lengths)} files are over "
                   f"{USUAL_LINES} lines: {' '.join(long)}")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
