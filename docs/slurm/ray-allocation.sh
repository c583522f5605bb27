#!/bin/bash
# A Ray cluster inside one SLURM allocation, and a batch or a run on it. The cluster ends with the job.
#
#   sbatch --nodes=4 --gpus-per-node=8 docs/slurm/ray-allocation.sh score PROBLEMS CANDIDATES --out OUT
#   sbatch --nodes=4 --gpus-per-node=8 docs/slurm/ray-allocation.sh run --suite demo --target cuda --model MODEL
#
# Whoever reaches the head's port with the token can run code as you on every node of the job: the token lies in a
# folder of this job that only you can read, and the network of the nodes must be a private one.
#SBATCH --job-name=kernelwright-ray
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=08:00:00
set -euo pipefail

# On a file system that all nodes of the job see.
folder=$(mktemp -d "${KERNELWRIGHT_RAY_FOLDER:-$HOME}/.kernelwright-ray-XXXXXX")
chmod 700 "$folder"
sessions=
cleaned() {
    kill $(jobs -p) 2>/dev/null || true
    wait
    rm -rf "$folder" ${sessions:+"$sessions"}
}
trap cleaned EXIT

export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/token RAY_USAGE_STATS_ENABLED=0
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH")

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 20000))
# Builds get the cores that the supervisors of the devices leave.
builds=$((SLURM_CPUS_PER_TASK - 2 * ${SLURM_GPUS_ON_NODE:-1}))
[ "$builds" -ge 1 ] || builds=1
sessions=/tmp/kwray-$SLURM_JOB_ID
common=(--block --disable-usage-stats --num-cpus="$SLURM_CPUS_PER_TASK" --resources="{\"build\": $builds}")

srun --nodes=1 --ntasks=1 --overlap --nodelist="$head" \
    ray start --head --node-ip-address="$address" --port="$port" --include-dashboard=false --temp-dir="$sessions" "${common[@]}" &
until (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null; do sleep 1; done
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 --overlap --nodelist="$node" ray start --address="$address:$port" "${common[@]}" &
done
until [ "$(ray status --address="$address:$port" | grep -c ' node_')" -ge "${#nodes[@]}" ]; do sleep 2; done

command=$1
shift
kernelwright "$command" "$@" --executor ray --address "$address:$port"
