#!/usr/bin/env python3
"""Counts the test cases of `bazel test`, from its build event files.

Usage: results.py NAME BAZEL_EXIT_CODE EVENTS.json...

Prints skips with their reasons, failures by name, the slowest targets and cases,
and as its last line `passed failed skipped`. Tests without a verdict count as
failed: a target that does not build, or a test that dies before it writes its
report.
"""

import collections
import json
import pathlib
import sys
import urllib.parse
import xml.etree.ElementTree as xml

SLOWEST = 10


def reports(events):
    """Returns {(test, shard, run): last attempt's (status, path of its XML)}."""
    found = {}
    for event in events:
        key = event.get("id", {}).get("testResult")
        if not key:
            continue
        result = event["testResult"]
        files = [f["uri"] for f in result.get("testActionOutput", [])
                 if f["name"] == "test.xml"]
        path = urllib.parse.unquote(urllib.parse.urlparse(files[0]).path) \
            if files else None
        # Attempts come in order: the last one stands.
        found[key["label"], key.get("shard", 1), key.get("run", 1)] = (
            result["status"], path)
    return found


def unbuilt(events):
    """Returns labels of the targets that did not build, and of root causes
    elsewhere."""
    labels = set()
    for event in events:
        for kind in ("targetCompleted", "configuredLabel",
                     "unconfiguredLabel"):
            key = event.get("id", {}).get(kind)
            if not key:
                continue
            skipped = event.get("aborted", {}).get("reason") == "SKIPPED"
            if not event.get("completed", {}).get("success") and not skipped:
                labels.add(key["label"])
    return labels


def cases(path):
    """Yields (name, 'passed'|'failed'|'skipped', text) from a report."""
    for case in xml.parse(path).getroot().iter("testcase"):
        name = ".".join(
            filter(None, (case.get("classname"), case.get("name"))))
        bad = case.find("failure") is not None or \
            case.find("error") is not None
        skip = case.find("skipped")
        if bad:
            yield name, "failed", ""
        elif skip is not None or case.get("result") == "skipped":
            text = skip.get("message") if skip is not None else ""
            yield name, "skipped", text or "no reason given"
        elif case.get("status") != "notrun":
            yield name, "passed", ""


def verdicts(label, status, path):
    found = []
    if path and pathlib.Path(path).exists():
        try:
            found = list(cases(path))
        except xml.ParseError as error:
            found = [(label, "failed", f"unreadable report: {error}")]
    # A crash or time-out after the last case, or before the first one.
    if status != "PASSED" and not any(v == "failed" for _, v, _ in found):
        found.append((label, "failed", status))
    # A test that ran nothing proves nothing.
    return found or [(label, "failed", "no test cases in it")]


def seconds_of(events):
    """Returns (target, its seconds over all shards), and (case, its seconds)."""
    targets, slow = collections.Counter(), collections.Counter()
    for event in events:
        key = event.get("id", {}).get("testResult")
        if key:
            millis = event["testResult"].get("testAttemptDurationMillis", 0)
            targets[key["label"]] += int(millis) / 1000
    for (label, _, _), (_, path) in reports(events).items():
        try:
            root = xml.parse(path).getroot()
        except (TypeError, OSError, xml.ParseError):
            continue
        for case in root.iter("testcase"):
            name = f"{label} {case.get('classname')}.{case.get('name')}"
            slow[name] += float(case.get("time") or 0)
    return targets, slow


def main():
    name, exit_code = sys.argv[1], int(sys.argv[2])
    events = [json.loads(line) for path in map(pathlib.Path, sys.argv[3:])
              if path.exists() for line in path.read_text().splitlines()]
    count = collections.Counter()
    for label in sorted(unbuilt(events)):
        count["failed"] += 1
        print(f"[{name}] FAILED {label}: does not build")
    for (label, _, _), (status, path) in sorted(reports(events).items()):
        for case, verdict, why in verdicts(label, status, path):
            count[verdict] += 1
            if verdict != "passed":
                reason = ": " + " ".join(why.split()) if why else ""
                print(f"[{name}] {verdict.upper()} {label} {case}{reason}")
    for what, times in zip(("targets", "cases"), seconds_of(events)):
        print(f"[{name}] slowest {what}, of {sum(times.values()):.0f} s:")
        for label, seconds in times.most_common(SLOWEST):
            print(f"[{name}] {seconds:8.1f} s {label}")
    if exit_code != 0 and not count["failed"]:
        count["failed"] += 1
        print(f"[{name}] FAILED bazel ended with {exit_code}")
    print(count["passed"], count["failed"], count["skipped"])


if __name__ == "__main__":
    main()
