#!/usr/bin/env bash
# A SLURM array job in which each task collects its part of one data set, and a job that joins them.
#
#   PARTS=64 STEPS=500_000 bash slurm.sh ALE/Pong-v5 /shared/runs/pong    # on the login node
#
# Needs `stepwell` on the PATH of the nodes, and a folder that all nodes see. A task that is
# requeued begins its part again, with the same seed: it collects the same rows.
#SBATCH --job-name=stepwell
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=4G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

submit() { # on the login node
  local array
  array=$(sbatch --parsable --array="1-${PARTS:-8}" "$0" collect "$1" "$2")
  # With a cluster's name it prints "job;cluster"; a task that failed leaves the data unjoined.
  sbatch --dependency="afterok:${array%%;*}" --kill-on-invalid-dep=yes "$0" merge "$2"
}

collect() { # a task of the array
  local part
  part=$(printf '%s.parts/part-%05d' "$2" "$SLURM_ARRAY_TASK_ID")
  [[ ! -e $part ]] || return 0 # complete before the task was requeued
  mkdir -p "$2.parts"
  rm -rf "$part.open"
  stepwell collect "$1" --steps "${STEPS:-100_000}" --seed "${SEED:-0}" \
    --workers "${SLURM_CPUS_PER_TASK:-1}" --out "$part.open" --quiet \
    --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
  mv "$part.open" "$part"
}

merge() { # when all tasks succeeded
  stepwell merge "$1".parts/part-????? --out "$1"
  rm -r "$1.parts"
}

case ${1:-} in
  collect | merge) "$@" ;;
  "") echo "usage: bash slurm.sh ENV OUT" >&2 && exit 2 ;;
  *) submit "$1" "${2:?usage: bash slurm.sh ENV OUT}" ;;
esac
