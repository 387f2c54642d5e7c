"""Runs unittest cases and writes what Bazel reads: one XML element a case."""

import os
import sys
import time
import unittest
from xml.sax.saxutils import quoteattr


class _TimedResult(unittest.TextTestResult):
    """Remembers what became of each case, and how long it took."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.cases = []
        self._begun = 0.0

    def startTest(self, test):
        self._begun = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        bad = [text for case, text in self.failures + self.errors if case is test]
        skipped = [text for case, text in self.skipped if case is test]
        self.cases.append((test.id(), time.monotonic() - self._begun, bad, skipped))
        super().stopTest(test)


def main():
    """unittest.main() with a report in $XML_OUTPUT_FILE."""
    runner = unittest.TextTestRunner(verbosity=2, resultclass=_TimedResult)
    program = unittest.main(module="__main__", testRunner=runner, exit=False)
    report = os.environ.get("XML_OUTPUT_FILE")
    if report:
        with open(report, "w", encoding="utf-8") as file:
            file.write(_as_xml(program.result.cases))
    sys.exit(0 if program.result.wasSuccessful() else 1)


def _as_xml(cases):
    failed = sum(1 for case in cases if case[2])
    lines = [f'<testsuites><testsuite name="system" tests="{len(cases)}" failures="{failed}">']
    for name, seconds, bad, skipped in cases:
        inside = "".join(f"<failure message={quoteattr(text)}/>" for text in bad)
        inside += "".join(f"<skipped message={quoteattr(text)}/>" for text in skipped)
        lines.append(f'<testcase name={quoteattr(name)} time="{seconds:.2f}">{inside}</testcase>')
    lines.append("</testsuite></testsuites>\n")
    return "\n".join(lines)
