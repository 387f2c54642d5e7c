# shellcheck shell=bash disable=SC2154
# ./dev lint: each check prints file, line and what to do; all of them run before it fails.
# venv_dir comes from common.sh.

lint() {
  local failed=0 check started
  for check in format protos shell python rules dependencies; do
    started=$SECONDS
    if "lint_$check"; then
      say "lint $check: ok ($((SECONDS - started)) s)"
    else
      say "lint $check: FAILED"
      failed=1
    fi
  done
  return "$failed"
}

# Files that git tracks or would track, by pattern; a deleted one that is still tracked is left out.
tree_files() {
  local file
  git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
    [ ! -f "$file" ] || printf '%s\n' "$file"
  done
}

lint_format() {
  tree_files '*.cc' '*.h' | xargs -r clang-format --dry-run -Werror && return
  say "what to do: clang-format -i FILE"
  return 1
}

lint_protos() {
  "$venv_dir/bin/buf" lint && return
  say "what to do: mend the line named; $venv_dir/bin/buf config ls-lint-rules explains each rule"
  return 1
}

lint_shell() {
  tree_files dev .ci/run '*.sh' | xargs -r shellcheck -x && return
  say "what to do: each message names its SC number; mend the line it points at"
  return 1
}

lint_python() {
  local code=0
  "$venv_dir/bin/ruff" check -q . || code=1
  "$venv_dir/bin/ruff" format -q --check . || code=1
  [ "$code" -eq 0 ] || say "what to do: $venv_dir/bin/ruff format . (and check --fix .)"
  return "$code"
}

lint_rules() {
  tree_files . | "$venv_dir/bin/python" tools/dev/tidy.py
}

# The dependency rules of the tree. Each line: who, what it must not reach, and why.
lint_dependencies() {
  local failed=0
  local libraries='//base/... + //kernels/... + //spec/...'
  forbid "$libraries + //server:round" '@grpc//...' \
    "base, kernels, spec and the round's state machine reach no gRPC" || failed=1
  forbid "$libraries + //transport/... + //server/... + //worker:agent + //worker:rank_client" \
    '@libtorch//...' "only the trainer's targets reach LibTorch" || failed=1
  forbid '//base/...' \
    '//kernels/... + //spec/... + //transport/... + //server/... + //worker/...' \
    "base is the lowest folder" || failed=1
  forbid '//kernels/...' '//spec/... + //transport/... + //server/... + //worker/...' \
    "above kernels lie spec, transport, server and worker" || failed=1
  forbid '//spec/...' '//transport/... + //server/... + //worker/...' \
    "above spec lie transport, server and worker" || failed=1
  forbid '//transport/...' '//server/... + //worker/...' \
    "above transport lie server and worker" || failed=1
  forbid '//server/...' '//worker/...' "server and worker do not depend on each other" || failed=1
  forbid '//worker/...' '//server/...' "server and worker do not depend on each other" || failed=1
  forbid "$libraries + //transport/... + //server/... + //worker/..." '//tests/...' \
    "the product does not depend on tests" || failed=1
  return "$failed"
}

# forbid WHO WHAT WHY: fails and prints the path when a target of WHO reaches one of WHAT.
forbid() {
  local path
  path=$(bazel_quiet query "somepath($1, $2)") || {
    say "bazel query could not look for a path from $1 to $2; its message is above"
    return 1
  }
  [ -n "$path" ] || return 0
  printf 'forbidden dependency: %s\n' "$3"
  printf '%s\n' "$path" | sed 's/^/  /'
  say "what to do: remove one of the edges above from its BUILD file, or move the code down"
  return 1
}
