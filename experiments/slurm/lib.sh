# shellcheck shell=bash
# Shared by the scripts beside this file. With DRY_RUN=1 nothing is started: each command is printed
# as a line "would start: …", and no Slurm is needed.
set -euo pipefail

# Where the programs are: ./dev build, and ./dev build --config=cuda for the trainer.
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
COORDINATOR_BIN=${COORDINATOR_BIN:-$root/bazel-bin/server/coordinator}
AGENT_BIN=${AGENT_BIN:-$root/bazel-bin/worker/agent}
TRAINER_BIN=${TRAINER_BIN:-$root/bazel-bin/worker/trainer_cuda}
# Everything that a run leaves behind: on a disk that outlives the job.
OUT=${OUT:-$PWD/runs}

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Runs a command, or prints it.
run() {
  if [ "${DRY_RUN:-0}" = 1 ]; then
    echo "would start: $*"
  else
    "$@"
  fi
}

# The same in the background; the ends of all are awaited by wait_for_all.
children=()
start() {
  if [ "${DRY_RUN:-0}" = 1 ]; then
    echo "would start: $*"
  else
    "$@" &
    children+=($!)
  fi
}

# The first child that ends badly ends the job, with its status.
wait_for_all() {
  local child
  for child in ${children[@]+"${children[@]}"}; do
    wait "$child" || return $?
  done
}

# Ends what was started, so that agents and trainers leave the run before the job's time is over
# (Slurm sends USR1 beforehand: #SBATCH --signal).
stop_all() {
  local child
  for child in ${children[@]+"${children[@]}"}; do
    kill -TERM "$child" 2>/dev/null || true
  done
  wait
}
trap stop_all EXIT
trap 'exit 0' USR1 TERM

# Of a RunSpec: its run, and the names of its nodes, one a line.
run_of() { sed -n 's/^run: "\([a-z0-9-]*\)".*/\1/p' "$1"; }
nodes_of() { sed -n '/^nodes/,/^}/s/^ *name: "\([a-z0-9-]*\)".*/\1/p' "$1"; }

check_spec() {
  [ -f "$1" ] || die "'$1' is not a file; give a RunSpec (*.txtpb)"
  [ -n "$(run_of "$1")" ] || die "$1 names no run"
}

# start_coordinator SPEC LISTEN [FLAG…]
start_coordinator() {
  local spec=$1 listen=$2
  shift 2
  local state
  state=$OUT/$(run_of "$spec")/coordinator
  run mkdir -p "$state"
  start "$COORDINATOR_BIN" "--run_spec=$spec" "--listen=$listen" "--state_dir=$state" \
    --exit_when_finished "$@"
}

# start_site SPEC NODE HOST RANKS PORT COORDINATOR: an agent and the trainers of one node, on HOST.
# (Ranks reach their agent over a socket file, so a node is one host.)
start_site() {
  local spec=$1 node=$2 host=$3 ranks=$4 port=$5 coordinator=$6
  local folder socket
  [ -n "${DATA:-}" ] || die "DATA is not set: the folder with train.bin and val.bin"
  folder=$OUT/$(run_of "$spec")/$node
  socket=unix:${TMPDIR:-/tmp}/isthmus-${SLURM_JOB_ID:-0}-$node.sock
  run mkdir -p "$folder"
  start srun --overlap --nodes=1 "--nodelist=$host" --ntasks=1 --cpus-per-task=2 --gpus=0 \
    "$AGENT_BIN" "--node=$node" "--coordinator=$coordinator" "--ranks=$ranks" \
    "--listen=$socket" "--state_dir=$folder" --exit_when_finished
  start srun --overlap --nodes=1 "--nodelist=$host" "--ntasks=$ranks" \
    "--cpus-per-task=${CPUS_PER_RANK:-8}" "--gpus=$ranks" --kill-on-bad-exit=1 \
    "$root/experiments/slurm/rank.sh" "$TRAINER_BIN" "--agent=$socket" \
    "--data=$DATA/train.bin" "--heldout_data=$DATA/val.bin" \
    --master_addr=127.0.0.1 "--master_port=$port" "--micro_batch=${MICRO_BATCH:-6}" \
    "--threads=${CPUS_PER_RANK:-8}" "--checkpoint_dir=$folder/checkpoints" \
    "--metrics_file=$folder/metrics.jsonl" "--summary_file=$folder/summary.json" \
    "--save=$folder/model/"
}
