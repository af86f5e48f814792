#!/usr/bin/env python3
"""Checks that includes match deps, and that sources include what they use.

A source may include the headers and sources of its own target, and what the
targets in its `deps` list under `hdrs`. Where it leans on a dependency's
dependency, a change over there breaks the build over here. Branches of select()
count as one, so code for one platform may name what another one lacks.

Headers of the standard library that the product's sources start from, compiled
(precompiled.inc), hide that an #include of one of them is missing. So a source that
uses such a header's names must include it, or its own header must.
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
# The names of each header of PRECOMPILED. What headers share is left out.
PRECOMPILED = pathlib.Path("gradientflow/build_defs/precompiled.inc")
NAMES = {
    "algorithm": "sort|min|max|clamp|find|find_if|copy|copy_n|fill|fill_n|any_of"
                 "|all_of|none_of|min_element|max_element|minmax_element|equal"
                 "|lower_bound|upper_bound|remove_if|count_if|reverse|rotate"
                 "|transform|nth_element|stable_sort|unique|for_each",
    "array": "array",
    "atomic": r"atomic\w*|memory_order\w*",
    "chrono": "chrono",
    "cmath": "sqrt|isfinite|isnan|isinf|log|log2|log1p|exp|pow|floor|ceil|round"
             "|lround|hypot|ldexp|cbrt|erf",
    "cstddef": "size_t|byte|ptrdiff_t",
    "cstdint": r"u?int(?:8|16|32|64|ptr)_t",
    "cstring": r"mem(?:cpy|cmp|set|move|chr)|str(?:len|cmp|error|chr|rchr)",
    "functional": "function|hash|less|greater|plus|ref",
    "limits": "numeric_limits",
    "map": "map|multimap",
    "memory": "unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared|addressof",
    "mutex": "mutex|lock_guard|unique_lock|scoped_lock|once_flag|call_once",
    "numeric": "accumulate|iota|gcd|partial_sum|inner_product",
    "optional": "optional|nullopt",
    "span": "span",
    "sstream": r"[io]?stringstream",
    "string": "string|to_string",
    "string_view": "string_view",
    "thread": "thread|this_thread",
    "unordered_map": "unordered_map",
    "utility": "move|pair|exchange|forward|swap|as_const|make_pair",
    "vector": "vector",
}
NAMES = {header: re.compile(rf"\bstd::(?:{names})\b")
         for header, names in NAMES.items()}
PRODUCT = ("gradientflow/", "transports/", "kernels/", "integrations/c/")
HEADER = (".h", ".inc")
SOURCE = (".cc", ".c", *HEADER)
# Rules that make sources of other sources.
MAKERS = ("genrule", "units")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def lists_of(rule):
    """The lists among the attributes of a rule."""
    return {child.get("name"): [label.get("value") for label in child]
            for child in rule if child.tag == "list"}


class Target:
    def __init__(self, rule, made_of):
        """`made_of`: a generated file -> the files that it is made of."""
        lists = lists_of(rule)
        self.name = rule.get("name")
        self.public = {path_of(label) for name in ("hdrs", "textual_hdrs")
                       for label in lists.get(name, [])}
        self.own = self.public | {path_of(source)
                                  for label in lists.get("srcs", [])
                                  for source in made_of.get(label, [label])}
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


def targets_of(rules):
    made_of = {name: lists_of(rule).get("srcs", [])
               for rule in rules if rule.get("class") in MAKERS
               for name in [rule.get("name"), *(
                   child.get("name") for child in rule
                   if child.tag == "rule-output")]}
    return {rule.get("name"): Target(rule, made_of) for rule in rules
            if rule.get("class") not in MAKERS}


def check(targets, read):
    owners = collections.defaultdict(set)
    for target in targets.values():
        for header in target.own:
            if header.endswith(HEADER):
                owners[header].add(target.name)
    return [line for target in targets.values()
            for line in violations(target, targets, owners, read)]


def std_includes(text):
    return {match.group(1) for match in map(INCLUDE.match, text.splitlines())
            if match}


def missing(source, read):
    """The headers whose names `source` uses and does not include."""
    text = read(source)
    own = std_includes(text)
    if source.endswith(".cc"):
        own |= std_includes(read(source.removesuffix("cc") + "h"))
    code = re.sub(r"//.*", "", text)
    for header, names in NAMES.items():
        used = names.search(code)
        if used and header not in own:
            yield f"{source}: uses {used.group()}, but does not include <{header}>"


def self_test():
    rules = ElementTree.fromstring("""<query>
      <rule name="//a:a"><list name="hdrs"><label value="//a:a.h"/></list>
        <list name="srcs"><label value="//a:hidden.h"/></list></rule>
      <rule name="//b:b"><list name="hdrs"><label value="//b:b.h"/></list>
        <list name="deps"><label value="//a:a"/></list></rule>
      <rule name="//c:c"><list name="srcs"><label value="//c:c.cc"/></list>
        <list name="deps"><label value="//b:b"/></list></rule>
      <rule name="//d:d"><list name="srcs"><label value="//d:unit.cc"/></list></rule>
      <rule name="//d:unit" class="genrule"><rule-output name="//d:unit.cc"/>
        <list name="srcs"><label value="//d:d.cc"/></list></rule>
      <rule name="//e:e"><list name="srcs"><label value="//e:units"/></list></rule>
      <rule name="//e:units" class="units">
        <list name="srcs"><label value="//e:e.cc"/></list></rule></query>""")

    def found(**texts):
        return len(check(targets_of(rules), lambda path: texts.get(
            path.replace("/", "_").replace(".", "_"), "")))

    assert found(b_b_h='#include "a/a.h"', c_c_cc='#include "b/b.h"') == 0
    assert found(c_c_cc='#include "a/a.h"') == 1
    assert found(b_b_h='#include "a/hidden.h"') == 1
    assert found(c_c_cc='#include <sodium.h>\n#include <vector>') == 1
    assert found(d_d_cc='#include "a/a.h"') == 1
    assert found(e_e_cc='#include "a/a.h"') == 1
    uses = {"a.h": "#include <vector>", "a.cc": "std::vector<std::byte> a;"}
    assert [line.split()[-1] for line in missing(
        "a.cc", lambda path: uses.get(path, ""))] == ["<cstddef>"]


def main():
    self_test()
    query = subprocess.run(
        ["bazel", "query", "--output=xml",
         f'kind("(cc_(library|test|binary)|{"|".join(MAKERS)}) rule", //...)'],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    # The parser knows XML 1.0 only, and the text is that, too.
    text = query.stdout.decode().replace('<?xml version="1.1"',
                                         '<?xml version="1.0"', 1)
    targets = targets_of(ElementTree.fromstring(text.encode()).findall("rule"))

    def read(path):
        file = pathlib.Path(path)
        return file.read_text() if file.exists() else ""  # It is generated.

    bad = check(targets, read)
    product = {path for target in targets.values() for path in target.own
               if path.startswith(PRODUCT) and path.endswith(SOURCE)}
    for source in sorted(product):
        bad += missing(source, read)
    for header in sorted(std_includes(PRECOMPILED.read_text()) - set(NAMES)):
        bad.append(f"{PRECOMPILED}: nobody looks for the names of <{header}>")
    if len(targets) < 2:
        bad.append("bazel query found no targets")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
