# shellcheck shell=bash disable=SC2154
# ./dev test: all tests, some of them, or those that make sense with a sanitizer.
# venv_dir comes from common.sh.

# tests/system starts whole programs from Python; what they are made of is tested by the others.
sanitized_tests='tests(//tests/... except //tests/system/...)'

# Prints the labels of the test targets in the query $1 that hold the text $2, one a line.
test_targets() {
  bazel_quiet query "$1" | grep -F -- "$2" ||
    die "no test target holds '$2'; bazel query '$1' lists them all"
}

run_tests() {
  local options=() tags=-long query='tests(//tests/...)' targets=(//tests/...) sanitizer="" only=""
  while [ $# -gt 0 ]; do
    case $1 in
      --long) tags="" ;;
      --asan | --tsan) sanitizer=${1#--} ;;
      --build) only=build ;;
      *) break ;;
    esac
    shift
  done
  setup
  if [ -n "$sanitizer" ]; then
    tags="${tags:+$tags,}-measures_memory"
    query=$sanitized_tests
    options+=("--config=$sanitizer")
  fi
  options+=("--test_tag_filters=$tags")
  if [ -n "$sanitizer" ] || [ $# -gt 0 ]; then
    mapfile -t targets < <(test_targets "$query" "${1:-//}")
    [ "${#targets[@]}" -gt 0 ] || exit 1
  fi
  [ $# -lt 2 ] || options+=("--test_filter=$2")
  if [ "$only" = build ]; then
    say "building the tests …"
    bazel_loud build --keep_going --build_tests_only "${options[@]}" -- "${targets[@]}"
  elif [ -n "$sanitizer" ]; then
    run_sanitized
  else
    run_and_count
  fi
}

# Runs the targets with the options of run_tests. The counts are the last line; the exit code is not
# 0 when anything failed.
run_and_count() {
  local events started=$SECONDS code=0
  events=$(mktemp)
  # shellcheck disable=SC2064 # The name is wanted as it is now.
  trap "rm -f '$events'" EXIT
  say "building and running the tests …"
  bazel_loud test --keep_going --build_tests_only "${options[@]}" \
    --build_event_json_file="$events" -- "${targets[@]}" || code=$?
  say "tests took $((SECONDS - started)) s (with their build)"
  "$venv_dir/bin/python" tools/dev/count_tests.py "$events" "$code" "$@"
}

# The same with a sanitizer. Every process writes its reports to a file of its own, so that those of
# programs that a test starts, and of tests that pass, are counted too.
run_sanitized() {
  local folder
  folder="$(bazel_quiet info output_base)/sanitizer_reports"
  rm -rf "$folder"
  mkdir -p "$folder"
  options+=(--nocache_test_results "--test_env=ASAN_OPTIONS=log_path=$folder/asan"
    "--test_env=UBSAN_OPTIONS=log_path=$folder/ubsan"
    "--test_env=TSAN_OPTIONS=log_path=$folder/tsan")
  run_and_count --sanitizer "$sanitizer" --reports "$folder"
}
