#!/usr/bin/env bash
#SBATCH --job-name=isthmus
#SBATCH --output=%x-%j.log
#SBATCH --nodes=2 --exclusive --gpus-per-node=8
#SBATCH --time=2-00:00:00
#SBATCH --requeue --signal=B:USR1@120
# A whole run in one job: the coordinator on the first host, and the nodes of the spec spread over
# the job's hosts, several on one where there are more nodes than hosts.
#
#   DATA=… sbatch --nodes=2 experiments/slurm/all_sites.sh RUN.txtpb
#
# GPUS_PER_HOST (default 8) are shared by the nodes of a host. The coordinator listens on the first
# host's own address without encryption: inside one cluster's network.
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[ -z "${SLURM_SUBMIT_DIR:-}" ] || here=$SLURM_SUBMIT_DIR/experiments/slurm
# shellcheck source=experiments/slurm/lib.sh
source "$here/lib.sh"

[ $# -eq 1 ] || die "usage: all_sites.sh RUN.txtpb"
check_spec "$1"
if [ "${DRY_RUN:-0}" = 1 ]; then
  read -ra hosts <<<"${HOSTS:-host0 host1}"
else
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
fi
mapfile -t nodes < <(nodes_of "$1")
per_host=$(((${#nodes[@]} + ${#hosts[@]} - 1) / ${#hosts[@]}))
ranks=$((${GPUS_PER_HOST:-8} / per_host))
[ "$ranks" -ge 1 ] || die "$per_host nodes on a host need as many GPUs; GPUS_PER_HOST is too small"

start_coordinator "$1" "${hosts[0]}:7070" --allow_plaintext
for i in "${!nodes[@]}"; do
  start_site "$1" "${nodes[$i]}" "${hosts[$((i / per_host))]}" "$ranks" $((29500 + i)) \
    "${hosts[0]}:7070"
done
wait_for_all
