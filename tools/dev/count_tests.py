"""Counts test cases from Bazel's build events and prints `N passed, N failed` as the last line.

usage: count_tests.py EVENTS_FILE BAZEL_EXIT_CODE [--sanitizer KIND --reports FOLDER]

A GoogleTest binary or a script that writes test.xml counts case by case. A target that could not
be built, that crashed or that ran out of time counts as one failure.

With a sanitizer the last line is a result with the reports that processes wrote to files in FOLDER
(`log_path` of the sanitizer's options); the beginning of each is printed.
"""

import argparse
import json
import pathlib
import re
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

# Bazel ends with this code when no test target was found.
BAZEL_NO_TESTS = 4
# The line that a report begins with.
REPORT = re.compile(
    r"(==[0-9]+==ERROR: \w+Sanitizer|: runtime error: |(WARNING|FATAL): ThreadSanitizer)", re.ASCII
)
SHOWN_LINES_MAX = 40


def read_events(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def count_cases(xml_path):
    """Returns (passed, failed, skipped) of one test.xml."""
    counts = [0, 0, 0]
    for case in ElementTree.parse(xml_path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts[1] += 1
        elif case.find("skipped") is not None or case.get("result") == "skipped":
            counts[2] += 1
        elif case.get("status") != "notrun":
            counts[0] += 1
    return tuple(counts)


def file_path(uri):
    return urllib.parse.unquote(urllib.parse.urlparse(uri).path)


def count_result(label, result):
    """Returns (passed, failed, skipped) of one run of one test target."""
    xml = [output for output in result.get("testActionOutput", []) if output["name"] == "test.xml"]
    passed = failed = skipped = 0
    if xml and pathlib.Path(file_path(xml[0]["uri"])).exists():
        passed, failed, skipped = count_cases(file_path(xml[0]["uri"]))
    status = result.get("status", "NO_STATUS")
    if status != "PASSED" and failed == 0:
        print(f"{label}: {status}")
        failed = 1
    return passed, failed, skipped


def count(events):
    """Returns ([passed, failed, skipped], labels of targets that could not be built)."""
    totals = [0, 0, 0]
    unbuilt = []
    for event in events:
        identity = event["id"]
        if "testResult" in event:
            label = identity["testResult"]["label"]
            for index, number in enumerate(count_result(label, event["testResult"])):
                totals[index] += number
        elif "targetCompleted" in identity and not event.get("completed", {}).get("success"):
            unbuilt.append(identity["targetCompleted"]["label"])
    return totals, unbuilt


def count_reports(folder):
    """Returns how many reports the files in the folder hold; shows what each file begins with."""
    reports = 0
    for path in sorted(pathlib.Path(folder).iterdir()):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        if not any(line.strip() for line in lines):
            continue
        print(f"{path}:")
        print("\n".join(lines[:SHOWN_LINES_MAX]))
        # What a sanitizer says beside reports is a word that it does not work.
        reports += max(1, sum(1 for line in lines if REPORT.search(line)))
    return reports


def count_targets(events):
    """Returns (targets that ran, those that passed)."""
    passed = {}
    for event in events:
        if "testResult" in event:
            label = event["id"]["testResult"]["label"]
            good = event["testResult"].get("status") == "PASSED"
            passed[label] = passed.get(label, True) and good
    return len(passed), sum(passed.values())


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("events")
    parser.add_argument("bazel_code", type=int)
    parser.add_argument("--sanitizer")
    parser.add_argument("--reports")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    events = read_events(arguments.events)
    (passed, failed, skipped), unbuilt = count(events)
    for label in unbuilt:
        print(f"{label}: could not be built")
    failed += len(unbuilt)
    if arguments.bazel_code == BAZEL_NO_TESTS or passed + failed + skipped == 0:
        print("no test ran (targets with the tag long run only with --long)", file=sys.stderr)
        failed = max(failed, 1)
    elif arguments.bazel_code != 0 and failed == 0:
        print(
            f"bazel ended with code {arguments.bazel_code} although no test failed", file=sys.stderr
        )
        failed = 1
    sys.stdout.flush()
    sys.stderr.flush()
    reports = count_reports(arguments.reports) if arguments.sanitizer else 0
    tail = f", {skipped} skipped" if skipped else ""
    print(f"{passed} passed, {failed} failed{tail}")
    met = failed == 0 and reports == 0
    if arguments.sanitizer:
        targets, good = count_targets(events)
        print(
            f"result sanitizers kind={arguments.sanitizer} targets={targets} targets_passed={good}"
            f" passed={passed} failed={failed} reports={reports} met={int(met)}"
        )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
