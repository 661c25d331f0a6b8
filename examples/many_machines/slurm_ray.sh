#!/usr/bin/env bash
# A Ray cluster inside one SLURM job: a raylet on each node, and collect.py on the first.
#
#   sbatch --nodes=16 slurm_ray.sh /shared/runs/pong
#
# Needs a Python environment that all nodes see, with `pip install 'stepwell[ray]'` (Ray 2.49 or
# newer), and collect.py in the folder that the job is submitted from.
#SBATCH --job-name=stepwell-ray
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=32G
#SBATCH --time=04:00:00
#SBATCH --exclusive
set -euo pipefail

out=${1:?usage: sbatch slurm_ray.sh OUT}
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes%%$'\n'*} # no pipe to `head -n 1`, which may end before scontrol has written all
actors=$(((SLURM_JOB_NUM_NODES - 1) * SLURM_CPUS_PER_TASK)) # the first node has the driver's work

# Every process that can reach these ports can run code as you: a token keeps other jobs out.
umask 077
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH="$HOME/.stepwell-ray-$SLURM_JOB_ID"
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH"
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

# A slow file system lets raylets start late.
export RAY_raylet_start_wait_time_s=120 RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
srun --kill-on-bad-exit=1 ray symmetric-run --address "$head:6379" \
  --min-nodes "$SLURM_JOB_NUM_NODES" --num-cpus "$SLURM_CPUS_PER_TASK" -- \
  env RAY_ADDRESS="$head:6379" python collect.py --groups "${GROUPS_OF_ENVS:-$actors}" --actors "$actors" --out "$out"
