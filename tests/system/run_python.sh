#!/bin/sh
# Runs a test written in Python: run_python.sh FILE [PYTHON]. (Bazel's own rule asks for a `python`
# that Debian does not have.)
exec env PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=tests/system:tools:tools/wan \
  "${2:-python3}" "$1"
