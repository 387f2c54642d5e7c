#!/bin/sh
# Short forms of cases of ./dev bench faults: fault_cases.sh CASE...
# A case that does not meet its bar fails the test.
for name; do
  cases="${cases:-} --case $name"
done
# shellcheck disable=SC2086 # Several words.
exec env PYTHONDONTWRITEBYTECODE=1 python3 tools/bench/faults.py --bazel-bin . --short $cases
