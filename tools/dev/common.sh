# shellcheck shell=bash
# Shared by ./dev and the scripts beside this file: messages, folders and the Bazel command.

# Some service managers and chroots start programs without HOME; Bazel and pip need one.
export HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"

cache_dir="${XDG_CACHE_HOME:-$HOME/.cache}/isthmus"
# The name holds the hash of the pins, so that every clone with the same pins shares one
# environment and a changed pin makes a new one.
venv_dir="$cache_dir/venv-$(sha256sum tools/dev/requirements.txt | cut -c1-12)"

# For scripts that ./dev starts.
export ISTHMUS_PYTHON="$venv_dir/bin/python"

say() { printf 'dev: %s\n' "$*" >&2; }

die() {
  printf 'dev: error: %s\n' "$*" >&2
  exit 1
}

# timed TEXT COMMAND…: says what runs, hides its output, and says how long it took.
# When the command fails its last lines are shown and its exit code is returned.
timed() {
  local text=$1 log started=$SECONDS code=0
  shift
  log=$(mktemp)
  say "$text …"
  "$@" >"$log" 2>&1 || code=$?
  if [ "$code" -ne 0 ]; then
    tail -n 25 "$log" >&2
    rm -f "$log"
    return "$code"
  fi
  rm -f "$log"
  say "$text: done in $((SECONDS - started)) s"
}

# Bazel with nothing but errors and warnings on the terminal. It reads no settings from the home
# folder, so that every machine builds alike.
bazel_quiet() {
  local command=$1
  shift
  bazel --nohome_rc "$command" --noshow_progress --ui_event_filters=-info "$@"
}

# For what may take minutes: live progress on a terminal, elsewhere a line now and then. The info
# messages stay, as the log of a failed test is one of them.
bazel_loud() {
  local command=$1 options=(--show_progress)
  shift
  [ -t 2 ] || options+=(--show_progress_rate_limit=30)
  bazel --nohome_rc "$command" "${options[@]}" "$@"
}
