#!/usr/bin/env bash
# What srun starts for each rank: the trainer, told which rank it is by the variables it reads.
set -euo pipefail
export RANK=${SLURM_PROCID:-0} WORLD_SIZE=${SLURM_NTASKS:-1} LOCAL_RANK=${SLURM_LOCALID:-0}
exec "$@"
