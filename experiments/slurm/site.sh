#!/usr/bin/env bash
#SBATCH --job-name=isthmus-site
#SBATCH --output=%x-%j.log
#SBATCH --nodes=1 --exclusive --gpus-per-node=8
#SBATCH --time=2-00:00:00
#SBATCH --requeue --signal=B:USR1@120
# One site of a run: its agent and its trainers, on one host with RANKS GPUs (default 8).
#
#   DATA=… COORDINATOR=HOST:PORT sbatch experiments/slurm/site.sh RUN.txtpb NODE
#
# Started again, the trainers go on from their newest checkpoint in OUT.
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[ -z "${SLURM_SUBMIT_DIR:-}" ] || here=$SLURM_SUBMIT_DIR/experiments/slurm
# shellcheck source=experiments/slurm/lib.sh
source "$here/lib.sh"

[ $# -eq 2 ] || die "usage: site.sh RUN.txtpb NODE"
check_spec "$1"
nodes_of "$1" | grep -qx -- "$2" || die "$1 has no node '$2'; it has: $(nodes_of "$1" | xargs)"
[ -n "${COORDINATOR:-}" ] || die "COORDINATOR is not set: HOST:PORT of the coordinator"
start_site "$1" "$2" "${SLURMD_NODENAME:-$(hostname)}" "${RANKS:-8}" 29500 "$COORDINATOR"
wait_for_all
