#!/usr/bin/env bash
# vectors.sh DIR: compares this implementation with the recordings in DIR (tests/vectors/README.md
# has their form). Called by ./dev vectors, from the root of the tree and after the set-up.
set -euo pipefail
# shellcheck source=tools/dev/common.sh
source tools/dev/common.sh

converted=$(mktemp)
trap 'rm -f "$converted"' EXIT
if [ -f "$1/demo.vec" ]; then
  cp -- "$1/demo.vec" "$converted"
elif [ -f "$1/outer.vec" ]; then
  cp -- "$1/outer.vec" "$converted"
else
  "$venv_dir/bin/python" tools/convert_vectors.py "$1" "$converted"
fi
bazel_quiet build //tests/vectors:vectors_check ||
  die "the build failed; the compiler's message is above"
"$(bazel_quiet info bazel-bin)/tests/vectors/vectors_check" "$converted"
