#!/usr/bin/env bash
# sbatch configs/cluster/slurm.sh run MATRIX: measure a matrix on the nodes of one Slurm job. Submit
# it from the checkout, which every node reads at one path. The head runs on the first node beside its
# machine; `sbatch configs/cluster/slurm.sh resume latest` goes on with what time cut short.
#SBATCH --job-name=dflashbench
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --exclusive
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@180
set -euo pipefail
: "${2:?sbatch configs/cluster/slurm.sh run MATRIX, or: resume RUN}"
resources=${RESOURCES:-'{"box": 1}'}  # the name that `resources` of an engine asks for
port=${PORT:-6379}
source .venv/bin/activate

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${nodes[0]}
others=$((${#nodes[@]} - 1))
srun --overlap --nodes=1 --ntasks=1 --nodelist="$first" \
    ray start --head --port="$port" --resources="$resources" --disable-usage-stats --block &
until ray status --address="$first:$port" >/dev/null 2>&1; do sleep 1; done
if ((others > 0)); then
    srun --overlap --nodes="$others" --ntasks="$others" --exclude="$first" \
        ray start --address="$first:$port" --resources="$resources" --block &
fi

# Slurm tells this shell three minutes before the time is up: the harness stops in good order.
dflashbench "$@" --on ray --address "$first:$port" &
harness=$!
trap 'kill -TERM "$harness"' TERM
code=0
wait "$harness" || code=$?
if ((code > 128)); then wait "$harness" || code=$?; fi  # the signal woke us first
exit "$code"
