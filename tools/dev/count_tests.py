"""Counts test cases from Bazel's build events and prints `N passed, N failed` as the last line.

usage: count_tests.py EVENTS_FILE BAZEL_EXIT_CODE

A GoogleTest binary or a script that writes test.xml counts case by case. A target that could not
be built, that crashed or that ran out of time counts as one failure.
"""

import json
import pathlib
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

# Bazel ends with this code when no test target was found.
BAZEL_NO_TESTS = 4


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


def main():
    events_path, bazel_code = sys.argv[1], int(sys.argv[2])
    (passed, failed, skipped), unbuilt = count(read_events(events_path))
    for label in unbuilt:
        print(f"{label}: could not be built")
    failed += len(unbuilt)
    if bazel_code == BAZEL_NO_TESTS or passed + failed + skipped == 0:
        print("no test ran (targets with the tag long run only with --long)", file=sys.stderr)
        failed = max(failed, 1)
    elif bazel_code != 0 and failed == 0:
        print(f"bazel ended with code {bazel_code} although no test failed", file=sys.stderr)
        failed = 1
    sys.stdout.flush()
    sys.stderr.flush()
    tail = f", {skipped} skipped" if skipped else ""
    print(f"{passed} passed, {failed} failed{tail}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
