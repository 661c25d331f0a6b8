#!/usr/bin/env bash
# Several machines without Ray: each collects its part of one data set, and this one joins them.
#
#   HOSTS="node1 node2" STEPS=500_000 bash without_ray.sh ALE/Pong-v5 runs/pong
#
# Needs ssh and rsync, and `stepwell` on the PATH of every host. The host "." is this machine, so
# HOSTS=". ." makes two processes here. All parts have one seed and parts of it that never meet
# (--shard), so the joined data does not depend on which host collected which part, or when.
set -euo pipefail

env_id=${1:?usage: without_ray.sh ENV OUT}
out=${2:?usage: without_ray.sh ENV OUT}
steps=${STEPS:-100_000} # of each part
seed=${SEED:-0}
read -r -a hosts <<< "${HOSTS:-. .}"
count=${#hosts[@]}
parts="$out.parts"
mkdir -p "$parts"

collect_part() { # collect_part NUMBER HOST: afterwards the part is a folder here
  local number=$1 host=$2 options
  local part="$parts/part-$number"
  [[ ! -e $part ]] || return 0 # it is complete: another run of this script goes on
  options=(collect "$env_id" --steps "$steps" --seed "$seed" --shard "$number/$count" --quiet)
  rm -rf "$part.open"
  if [[ $host == . ]]; then
    stepwell "${options[@]}" --out "$part.open"
  else
    local there="stepwell-part-$number-of-$count"
    # shellcheck disable=SC2029 # the words are quoted here, for the shell there
    ssh "$host" "rm -rf $there && stepwell $(printf '%q ' "${options[@]}") --out $there"
    rsync -a "$host:$there/" "$part.open/"
  fi
  mv "$part.open" "$part"
}

running=()
for number in $(seq "$count"); do
  collect_part "$number" "${hosts[number - 1]}" &
  running+=($!)
done
failed=0
for process in "${running[@]}"; do
  wait "$process" || failed=1
done
if ((failed)); then
  echo "A part failed. Run the same command again: the complete parts are kept." >&2
  exit 1
fi

names=()
for number in $(seq "$count"); do
  names+=("$parts/part-$number")
done
stepwell merge "${names[@]}" --out "$out"
rm -r "$parts"
