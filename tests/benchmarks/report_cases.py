"""Runs a module's unittest cases under Bazel, which counts each of them."""

import os
import pathlib
import time
import unittest
from xml.etree import ElementTree


class _Result(unittest.TextTestResult):
    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.suite = ElementTree.Element("testsuite")

    def startTest(self, test):
        super().startTest(test)
        name, _, case = test.id().rpartition(".")
        self._case = ElementTree.SubElement(
            self.suite, "testcase", classname=name.split(".")[-1], name=case)
        self._begin = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        self._case.set("time", f"{time.monotonic() - self._begin:.3f}")

    def _add(self, kind, text):
        ElementTree.SubElement(self._case, kind, message=text)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._add("failure", str(error[1]))

    def addError(self, test, error):
        super().addError(test, error)
        self._add("error", str(error[1]))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._add("skipped", reason)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error:
            self._add("failure", str(error[1]))


class _Loader(unittest.TestLoader):
    """Loads Bazel's share of the cases, if it runs them in shards."""

    def loadTestsFromModule(self, *args, **settings):
        cases = list(_flat(super().loadTestsFromModule(*args, **settings)))
        shards = int(os.environ.get("TEST_TOTAL_SHARDS", 1))
        status = os.environ.get("TEST_SHARD_STATUS_FILE")
        if status:
            pathlib.Path(status).touch()
        return self.suiteClass(
            cases[int(os.environ.get("TEST_SHARD_INDEX", 0))::shards])


def _flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def main():
    program = unittest.main(
        exit=False, verbosity=2, testLoader=_Loader(),
        testRunner=unittest.TextTestRunner(resultclass=_Result))
    path = os.environ.get("XML_OUTPUT_FILE")
    if path:
        ElementTree.ElementTree(program.result.suite).write(path)
    raise SystemExit(not program.result.wasSuccessful())
