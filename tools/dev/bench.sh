# shellcheck shell=bash disable=SC2154
# ./dev bench: builds what a benchmark needs and hands over to tools/bench/run.py, which installs
# its peers, runs it and keeps its results. venv_dir comes from common.sh.

run_bench() {
  local targets bench=("$venv_dir/bin/python" tools/bench/run.py)
  setup
  if [ $# -eq 0 ] || [ "$1" = -h ] || [ "$1" = --help ]; then
    "${bench[@]}" --help
    return
  fi
  targets=$("${bench[@]}" --targets "$1") || exit 2
  if [ -n "$targets" ]; then
    say "building $targets …"
    # shellcheck disable=SC2086 # Several labels are several words.
    bazel_loud build --ui_event_filters=-info $targets ||
      die "the build failed; the compiler's message is above"
  fi
  exec "${bench[@]}" --bazel-bin "$(bazel_quiet info bazel-bin)" "$@"
}
