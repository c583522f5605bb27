#!/bin/bash
# One record of all shards of an array, and its table. It judges nothing, so any node will do.
#
#   sbatch --dependency=afterany:ARRAY_JOB docs/slurm/score-merge.sh PROBLEMS CANDIDATES OUT [options, such as --json]
#SBATCH --job-name=kernelwright-merge
#SBATCH --ntasks=1
#SBATCH --time=00:30:00
set -euo pipefail

problems=$1 candidates=$2 out=$3
shift 3

merges=()
for shard in "$out"/shard-*; do
    [ -e "$shard/scores.db" ] || continue
    merges+=(--merge "$shard")
done
if [ ${#merges[@]} -eq 0 ]; then
    echo "there is no shard in $out; run score-array.sh first" >&2
    exit 2
fi
exec kernelwright score "$problems" "$candidates" --out "$out/whole" "${merges[@]}" --no-judge "$@"
