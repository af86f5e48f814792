#!/usr/bin/env python3
"""Checks that every #include of a Bazel target is a header of a direct dependency.

A source may include the headers and sources of its own target, and what the
targets in its `deps` list under `hdrs`. Where it leans on a dependency's
dependency, a change over there breaks the build over here. Branches of select()
count as one, so code for one platform may name what another one lacks.
"""

import collections
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

# Libraries of other people, by how their headers are named.
OTHERS = {
    "CLI/": "@cli11",
    "benchmark/": "@benchmark",
    "gtest/": "@googletest",
    "hwy/": "@highway",
    "infiniband/": "@ibverbs",
    "nlohmann/": "@nlohmann_json",
    "sodium.h": "@sodium",
}
SOURCE = (".cc", ".c", ".h", ".inc")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


class Target:
    def __init__(self, rule):
        lists = {child.get("name"): [label.get("value") for label in child]
                 for child in rule if child.tag == "list"}
        self.name = rule.get("name")
        self.public = {path_of(label) for name in ("hdrs", "textual_hdrs")
                       for label in lists.get(name, [])}
        self.own = self.public | {path_of(label)
                                  for label in lists.get("srcs", [])}
        self.deps = lists.get("deps", [])


def path_of(label):
    """Returns the path of a file from its label: //a/b:c/d.h is a/b/c/d.h."""
    return label.removeprefix("//").replace(":", "/").removeprefix("/")


def is_other(header):
    return next((repository for prefix, repository in OTHERS.items()
                 if header.startswith(prefix)), None)


def offer(name, targets):
    """The headers that a target gives to those that depend on it. One without
    files of its own passes on what it depends on."""
    target = targets.get(name)
    if target is None:
        return set()
    if target.own:
        return target.public
    return set().union(*(offer(dep, targets) for dep in target.deps))


def violations(target, targets, owners, read):
    """`owners`: header -> the names of targets that offer it; `read(path)`
    returns the text of a file."""
    offered = target.own.union(*(offer(dep, targets) for dep in target.deps))
    repositories = {dep.split("//")[0] for dep in target.deps}
    for source in sorted(target.own):
        if not source.endswith(SOURCE):
            continue
        for number, line in enumerate(read(source).splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            header = match.group(1)
            other = is_other(header)
            if header in owners and header not in offered:
                wanted = " or ".join(sorted(owners[header]))
            elif other and other not in repositories:
                wanted = other
            else:
                continue
            yield (f"{source}:{number}: {target.name} includes {header}, "
                   f"but {wanted} is not among its deps")


def check(rules, read):
    targets = {target.name: target for target in map(Target, rules)}
    owners = collections.defaultdict(set)
    for target in targets.values():
        for header in target.own:
            if header.endswith((".h", ".inc")):
                owners[header].add(target.name)
    return [line for target in targets.values()
            for line in violations(target, targets, owners, read)]


def self_test():
    rules = ElementTree.fromstring("""<query>
      <rule name="//a:a"><list name="hdrs"><label value="//a:a.h"/></list>
        <list name="srcs"><label value="//a:hidden.h"/></list></rule>
      <rule name="//b:b"><list name="hdrs"><label value="//b:b.h"/></list>
        <list name="deps"><label value="//a:a"/></list></rule>
      <rule name="//c:c"><list name="srcs"><label value="//c:c.cc"/></list>
        <list name="deps"><label value="//b:b"/></list></rule></query>""")

    def found(**texts):
        return len(check(rules, lambda path: texts.get(
            path.replace("/", "_").replace(".", "_"), "")))

    assert found(b_b_h='#include "a/a.h"', c_c_cc='#include "b/b.h"') == 0
    assert found(c_c_cc='#include "a/a.h"') == 1
    assert found(b_b_h='#include "a/hidden.h"') == 1
    assert found(c_c_cc='#include <sodium.h>\n#include <vector>') == 1


def main():
    self_test()
    query = subprocess.run(
        ["bazel", "query", "--output=xml",
         'kind("cc_(library|test|binary) rule", //...)'],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    # The parser knows XML 1.0 only, and the text is that, too.
    text = query.stdout.decode().replace('<?xml version="1.1"',
                                         '<?xml version="1.0"', 1)
    rules = ElementTree.fromstring(text.encode()).findall("rule")

    def read(path):
        file = pathlib.Path(path)
        return file.read_text() if file.exists() else ""  # It is generated.

    bad = check(rules, read)
    if len(rules) < 2:
        bad.append("bazel query found no targets")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
