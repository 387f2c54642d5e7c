#!/usr/bin/env bash
#SBATCH --job-name=isthmus-coordinator
#SBATCH --output=%x-%j.log
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=4
#SBATCH --time=7-00:00:00
#SBATCH --requeue --signal=B:USR1@120
# The coordinator of a run whose sites are jobs of their own (site.sh), perhaps on other clusters:
#
#   sbatch experiments/slurm/coordinator.sh RUN.txtpb [HOST:PORT]
#
# It listens on loopback unless told otherwise; other clusters come in through a tunnel. OUT names
# the folder that keeps the run: the same command goes on with it.
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# Slurm runs a copy of this file.
[ -z "${SLURM_SUBMIT_DIR:-}" ] || here=$SLURM_SUBMIT_DIR/experiments/slurm
# shellcheck source=experiments/slurm/lib.sh
source "$here/lib.sh"

[ $# -ge 1 ] || die "usage: coordinator.sh RUN.txtpb [HOST:PORT]"
check_spec "$1"
listen=${2:-127.0.0.1:7070}
more=()
case $listen in
  127.0.0.1:* | localhost:*) ;;
  *) more=(--allow_plaintext) ;; # There is no TLS yet: only inside a network that you trust.
esac
start_coordinator "$1" "$listen" ${more[@]+"${more[@]}"}
wait_for_all
