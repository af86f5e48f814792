#!/usr/bin/env python3
"""Groups C++ sources into units that tidy.sh reads as one file each.

Usage: units.py FILE.cc...

Prints one unit per line, largest first. Headers take most of the time of reading a
source, and a unit reads each of them once. Two files stand in one unit only if they
define nothing of the same name, since a unit has one anonymous namespace. This goes
by the text of the files, and so it only nearly holds: whoever uses a unit that does
not compile takes apart what does not go together.
"""

import pathlib
import re
import sys

# A unit of more files saves little more, and others wait for it at the end.
MOST_FILES = 16
# The house's style indents what is inside a function or a class, and nothing else.
TYPE = re.compile(r"(?:class|struct|enum(?: class)?|union) (\w+)")
OTHER = re.compile(r"(?!namespace|using namespace|return)[A-Za-z_][^=({;\[]*?"
                   r"(?<![:\w])(\w+)\s*[=({;\[]")
# The kernel's headers define again what libc's define: no two of these go together.
KERNEL = re.compile(r"#include <linux/")


def names(text):
    """Returns what a source defines at the level of a namespace."""
    found = set()
    for line in text.splitlines():
        match = TYPE.match(line) or OTHER.match(line)
        if match:
            found.add(match.group(1))
    return found


def units_of(sources):
    """Splits [(file, text)]: each joins the first unit that it fits."""
    units = []
    for file, text in sources:
        if KERNEL.search(text):
            units.append(([file], None))
            continue
        mine = names(text)
        for files, taken in units:
            if taken is not None and len(files) < MOST_FILES \
                    and not mine & taken:
                files.append(file)
                taken |= mine
                break
        else:
            units.append(([file], mine))
    return [files for files, _ in units]


def self_test():
    assert names("int F(int a,\n      int b) {\n  int c = 3;") == {"F"}
    assert names("constexpr double kA = 1;\nclass B final : public C {") == {
        "kA", "B"}
    assert names("Status A::B(int c) {\nnamespace d {") == set()
    assert units_of([("a", "int x;"), ("b", "int y;"), ("c", "int x;"),
                     ("d", "#include <linux/e.h>")]) == [
                         ["a", "b"], ["c"], ["d"]]


def main():
    self_test()
    sources = [(name, pathlib.Path(name).read_text()) for name in sys.argv[1:]]
    units = units_of(sources)
    for unit in sorted(units, key=len, reverse=True):
        print(*unit)


if __name__ == "__main__":
    main()
