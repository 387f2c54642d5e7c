# shellcheck shell=bash disable=SC2154
# Set-up on Debian 12: Debian packages, the Python environment, and Bazel's settings for this
# machine. Each step looks first whether it is needed, so that a second run does nothing.
# venv_dir and cache_dir come from common.sh.

setup() {
  local started=$SECONDS
  setup_packages
  setup_venv
  setup_bazelrc
  trim_bazel_cache
  if [ $((SECONDS - started)) -gt 2 ]; then
    say "set-up complete in $((SECONDS - started)) s"
  fi
}

wanted_packages() { grep -v '^#' tools/dev/packages.txt; }

missing_packages() {
  # dpkg-query prints nothing on stdout for a package that it does not know.
  # shellcheck disable=SC2016 # The format's ${…} is for dpkg-query.
  comm -23 <(wanted_packages | sort) \
    <(wanted_packages | xargs dpkg-query -W -f '${Package} ${db:Status-Status}\n' 2>/dev/null |
      awk '$2 == "installed" { print $1 }' | sort)
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    sudo "$@"
  fi
}

setup_packages() {
  local missing package
  command -v dpkg-query >/dev/null ||
    die "this is not Debian; install what tools/dev/packages.txt names, then see docs/hacking.md"
  mapfile -t missing < <(missing_packages)
  [ "${#missing[@]}" -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    die "Debian packages are missing and neither root nor sudo is at hand;" \
      "as root, run: apt-get install ${missing[*]}"
  fi
  timed "apt-get update" as_root apt-get update -q ||
    die "apt-get update failed; check the network and /etc/apt/sources.list"
  say "missing Debian packages: ${missing[*]}"
  if timed "apt-get install" \
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends \
    "${missing[@]}"; then
    return 0
  fi
  # One at a time, to name the one that cannot be had.
  for package in "${missing[@]}"; do
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends \
      "$package" >/dev/null 2>&1 ||
      die "the Debian package $package cannot be installed; try: apt-get install $package"
  done
}

# Debian's own python3 where there is one: python3-venv belongs to it and to no other.
system_python() {
  if [ -x /usr/bin/python3 ]; then
    echo /usr/bin/python3
  else
    command -v python3 || die "python3 is missing; install the package python3"
  fi
}

setup_venv() {
  local requirement
  [ ! -e "$venv_dir/.complete" ] || return 0
  mkdir -p "$cache_dir"
  # Only one clone at a time makes the environment; the others wait here and then find it.
  exec 9>"$cache_dir/setup.lock"
  flock -w 1200 9 || die "another ./dev setup holds $cache_dir/setup.lock for 20 minutes"
  if [ ! -e "$venv_dir/.complete" ]; then
    # A half-made environment from an interrupted run is thrown away.
    rm -rf "$venv_dir"
    "$(system_python)" -m venv "$venv_dir" ||
      die "no virtual environment could be made in $venv_dir; install the package python3-venv"
    while read -r requirement; do
      timed "installing $requirement" \
        "$venv_dir/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir \
        --no-deps --only-binary :all: "$requirement" ||
        die "the PyPI package $requirement cannot be installed; its message is above"
    done < <(grep -v '^#' tools/dev/requirements.txt)
    touch "$venv_dir/.complete"
  fi
  exec 9>&-
}

# Bazel's .bazelrc cannot name the home folder; what depends on the machine goes here.
setup_bazelrc() {
  local text torch_dir
  torch_dir=$(echo "$venv_dir"/lib/python3*/site-packages/torch)
  text="# Written by ./dev setup; not under version control.
build --disk_cache=$cache_dir/bazel-disk
common --repo_env=ISTHMUS_VENV=$venv_dir
common --repo_env=ISTHMUS_TORCH_DIR=$torch_dir"
  if [ ! -e .bazelrc.user ] || [ "$(cat .bazelrc.user)" != "$text" ]; then
    printf '%s\n' "$text" >.bazelrc.user
  fi
}

# Bazel 4.2 never removes anything from its disk cache: once a day drop what nobody read for a
# month.
trim_bazel_cache() {
  local stamp="$cache_dir/bazel-disk-trimmed"
  [ -z "$(find "$stamp" -mtime -1 2>/dev/null)" ] || return 0
  mkdir -p "$cache_dir/bazel-disk"
  find "$cache_dir/bazel-disk" -type f -atime +30 -delete
  touch "$stamp"
}
