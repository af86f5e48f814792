#!/usr/bin/env python3
"""Groups C++ sources into units that are read or compiled as one file each.

Usage: units.py FILE.cc...           prints one unit per line, largest first
       units.py --to FOLDER FILE.cc...   writes as many files: the units' text,
                                         and then empty ones

Headers take most of the time of reading a source, and a unit reads each of them
once. Two files stand in one unit only if they define nothing of the same name, since a
unit has one anonymous namespace, and if neither mentions a type or a constant that the
other defines, since it means one of a header. This goes by the text of the files, and
so it only nearly holds. Where a unit does not compile, tidy.sh takes apart what does not
go together, and in a build one of the two names must change.
"""

import functools
import pathlib
import re
import sys

# Units of more files are no fewer: what they have already keeps others out.
MOST_FILES = 32
# After an edit, a whole unit is compiled.
MOST_COMPILED = 10
# The house's style indents what is inside a function or a class, and nothing else.
TYPE = re.compile(r"(?:class|struct|enum(?: class)?|union) (\w+)")
OTHER = re.compile(r"(?!namespace|using namespace|return)[A-Za-z_][^=({;\[]*?"
                   r"(?<![:\w])(\w+)\s*[=({;\[]")
CONSTANT = re.compile("k[A-Z]")
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)
# The kernel's headers define again what libc's define: no two of these go together.
KERNEL = re.compile(r"#include <linux/")


@functools.cache
def words_in(header):
    """Returns what a header mentions, or one that it includes."""
    path = pathlib.Path(header)
    return words_of(path.read_text()) if path.is_file() else frozenset()


def words_of(text):
    return frozenset(re.findall(r"\w+", text)).union(
        *map(words_in, INCLUDE.findall(text)))


class Source:
    """What a source defines in its namespace, and what it or its headers mention."""

    def __init__(self, text):
        self.alone = KERNEL.search(text) is not None
        self.words = words_of(text)
        self.names = {"main"} if "BENCHMARK_MAIN" in text else set()
        self.meant = set()  # Types and constants, of which only one can be meant.
        for line in text.splitlines():
            match = TYPE.match(line) or OTHER.match(line)
            if match:
                self.names.add(match.group(1))
            if match and (match.re is TYPE or CONSTANT.match(match.group(1))):
                self.meant.add(match.group(1))

    def goes_with(self, other):
        return not (self.alone or other.alone or self.names & other.names
                    or self.meant & other.words or other.meant & self.words)


def units_of(sources, most=MOST_FILES):
    """Splits [(file, text)]: each joins the first unit that it fits."""
    units = []
    for file, text in sources:
        mine = Source(text)
        for unit in units:
            if len(unit) < most and all(
                    mine.goes_with(other) for _, other in unit):
                unit.append((file, mine))
                break
        else:
            units.append([(file, mine)])
    return [[file for file, _ in unit] for unit in units]


def self_test():
    assert Source("int F(int a,\n      int b) {\n  int c = 3;").names == {"F"}
    assert Source("constexpr double kA = 1;\nclass B final : public C {").names == {
        "kA", "B"}
    assert not Source("Status A::B(int c) {\nnamespace d {").names
    assert units_of([("a", "int x;"), ("b", "int y;"), ("c", "int x;"),
                     ("d", "#include <linux/e.h>")]) == [
                         ["a", "b"], ["c"], ["d"]]
    assert units_of([("a", "struct A {"), ("b", "int b(A& c);"), ("c", "int A;"),
                     ("d", "BENCHMARK_MAIN();"), ("e", "int main() {")]) == [
                         ["a", "d"], ["b", "c", "e"]]


def write(folder, sources):
    """Messages of compilers will name the files themselves."""
    texts = dict(sources)
    units = units_of(sources, MOST_COMPILED)
    for number in range(len(sources)):
        unit = units[number] if number < len(units) else []
        pathlib.Path(folder, f"{number}.cc").write_text(
            "".join(f'#line 1 "{file}"\n{texts[file]}' for file in unit))


def main():
    to = sys.argv[2] if sys.argv[1] == "--to" else None
    sources = [(name, pathlib.Path(name).read_text())
               for name in sys.argv[3 if to else 1:]]
    if to:
        write(to, sources)
        return
    self_test()
    units = units_of(sources)
    for unit in sorted(units, key=len, reverse=True):
        print(*unit)


if __name__ == "__main__":
    main()
