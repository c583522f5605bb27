#!/bin/bash
# Score a folder of candidates as a SLURM array, without Ray: each task judges its own share of the files.
#
#   sbatch --array=1-16 docs/slurm/score-array.sh PROBLEMS CANDIDATES OUT [more options of `kernelwright score`]
#
# Every task writes OUT/shard-N and nothing else, so a task that is killed, or requeued, goes on where it was: submit the
# same array again. Afterwards docs/slurm/score-merge.sh makes one record of all shards.
#SBATCH --job-name=kernelwright-score
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
set -euo pipefail

problems=$1 candidates=$2 out=$3
shift 3

first=${SLURM_ARRAY_TASK_MIN:-1}
last=${SLURM_ARRAY_TASK_MAX:?start this with sbatch --array=1-N}
step=${SLURM_ARRAY_TASK_STEP:-1}
if [ "$first" != 1 ] || [ "$step" != 1 ]; then
    echo "the array is $first-$last:$step; shards are counted from 1 without gaps, so give --array=1-N" >&2
    exit 2
fi
# A throttled or partly resubmitted array, such as --array=3,7, names fewer tasks than there are shards.
shards=${KERNELWRIGHT_SHARDS:-$last}

kernelwright score "$problems" "$candidates" \
    --shard "$SLURM_ARRAY_TASK_ID/$shards" --out "$out/shard-$SLURM_ARRAY_TASK_ID" "$@" &
judging=$!
# SLURM's warning before the end of the time: every verdict so far is kept.
trap 'kill -TERM "$judging"' INT TERM
status=0
wait "$judging" || status=$?
# A trapped signal ends `wait` before the command has ended.
if kill -0 "$judging" 2>/dev/null; then
    wait "$judging" || status=$?
fi
exit "$status"
